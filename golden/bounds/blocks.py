"""Bounds of what is looked up and expanded."""

from collections.abc import Callable

from refsd.golden.bounds.run import Run, movement
from refsd.golden.rounding import Bound

BOUNDS: dict[str, Callable[[Run], Bound]] = {
    "embedding": movement("weight"),
    "dequantize": movement("x"),
}
