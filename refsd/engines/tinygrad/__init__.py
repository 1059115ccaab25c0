"""tinygrad as an engine."""
