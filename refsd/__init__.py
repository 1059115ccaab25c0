"""Reference implementation and test oracle for diffusion image engines.

From Python: golden, judge, assert_conforms, forward, watch (docs/python.md).
"""

import importlib
import os
import sys

__version__ = "0.1.0"

# Name -> the module that defines it; it is imported when the name is first used.
_DEFINED_IN = {
    "judge": "refsd.api",
    "assert_conforms": "refsd.api",
    "forward": "refsd.api",
    "watch": "refsd.watching",
}


# After a product OpenBLAS's threads spin for 2^26 cycles by default, on the cores that the next Numba kernel
# needs: a fifth of a UNet step. OpenBLAS reads this when NumPy is imported.
SPINS, SHORT = "OPENBLAS_THREAD_TIMEOUT", "20"


def _import_numpy() -> None:
    """Import NumPy so that its threads spin briefly; leave the environment as it is.

    A program that has imported NumPy before sets the variable by itself.
    """
    if "numpy" in sys.modules or SPINS in os.environ:
        return
    os.environ[SPINS] = SHORT
    try:
        importlib.import_module("numpy")
    finally:
        del os.environ[SPINS]


def __getattr__(name: str):
    if name == "golden" or name in _DEFINED_IN:
        _import_numpy()
    if name == "golden":
        return importlib.import_module("refsd.golden")
    if name not in _DEFINED_IN:
        raise AttributeError(f"module 'refsd' has no attribute {name!r}")
    return getattr(importlib.import_module(_DEFINED_IN[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_DEFINED_IN, "golden"})


class _Golden(type(sys)):
    """The package refsd.golden, which is also a function of the API."""

    def __call__(self, case: str, numerics: str = "float32"):
        """Return the inputs, truth and bound of a case, by its exact name: see refsd.api.golden."""
        return importlib.import_module("refsd.api").golden(case, numerics)


class _Refsd(type(sys)):
    """This package. The import system binds refsd.golden here when anything first imports it."""

    def __setattr__(self, name: str, value) -> None:
        if name == "golden":
            value.__class__ = _Golden
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Refsd
