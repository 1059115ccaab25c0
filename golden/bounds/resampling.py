"""Bounds of resampling."""

from collections.abc import Callable

from refsd.golden.bounds.run import Run, movement
from refsd.golden.rounding import Bound

BOUNDS: dict[str, Callable[[Run], Bound]] = {
    "upsample_nearest": movement("x"),
}
