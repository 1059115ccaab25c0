"""Causes and descriptions that need only the wrong answer, the truth and the honest run."""
