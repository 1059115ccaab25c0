"""Reference implementation and test oracle for diffusion image engines."""

import importlib
import os

__version__ = "0.1.0"

# After a product OpenBLAS's threads spin for 2^26 cycles by default, on the cores that the next Numba kernel
# needs: a fifth of a UNet step. It reads this when NumPy is imported; a program that imports NumPy before refsd
# sets it by itself.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")


def __getattr__(name: str):
    """`watch` needs torch's half of refsd: it is imported when first asked for."""
    if name == "watch":
        return importlib.import_module("refsd.watching").watch
    raise AttributeError(f"module 'refsd' has no attribute {name!r}")
