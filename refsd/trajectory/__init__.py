"""Trajectories: what a sampler makes of its model's answers, step by step, and whether an engine does the same."""
