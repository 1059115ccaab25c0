"""Describe how an engine rounds, and compute with this rounding; also stored tensors and errors."""
