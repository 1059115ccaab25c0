"""Causes in a stage of the pipeline."""
