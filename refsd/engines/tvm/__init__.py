"""Apache TVM as an engine."""
