"""Requests to an engine: a random case, its memory layout, a process of its own."""
