"""Pipelines: from words to a picture."""
