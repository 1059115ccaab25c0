"""IREE as an engine."""
