"""Causes at a wrong tap of a model."""
