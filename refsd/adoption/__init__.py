"""Graphs that somebody else wrote, as cases of the oracle: docs/adopt.md."""
