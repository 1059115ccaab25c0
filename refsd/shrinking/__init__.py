"""Reduce a case that an engine fails to the smallest that it fails in the same way, and write it as a folder."""
