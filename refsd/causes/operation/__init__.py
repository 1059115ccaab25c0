"""Causes in one operation: in its blocks, steps, constants and arguments."""
