"""Reference implementation and test oracle for diffusion image engines."""

__version__ = "0.1.0"
