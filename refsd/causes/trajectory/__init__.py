"""Causes in a sampler's steps."""
