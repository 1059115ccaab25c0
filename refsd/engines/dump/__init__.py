"""Tensors that an engine left in files, case by case."""
