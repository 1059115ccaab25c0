"""Bounds of what moves numbers: they stay what they are. Sums and products of two are rounded once."""

from collections.abc import Callable

import numpy as np

from refsd.golden.bounds.run import Run, movement
from refsd.golden.rounding import Bound, Terms


def _add(run: Run) -> Bound:
    return run.rounded(Terms().add(run.moved("a")).add(run.moved("b")).add(run.u * np.abs(run.truth)))


def _mul(run: Run) -> Bound:
    a, b, da, db = np.abs(run.inputs["a"]), np.abs(run.inputs["b"]), run.moved("a"), run.moved("b")
    return run.rounded(Terms().add(a * db).add((b + db) * da).add(run.u * np.abs(run.truth)))


BOUNDS: dict[str, Callable[[Run], Bound]] = {
    "pixel_unshuffle": movement("x"),
    "pixel_shuffle": movement("x"),
    "patchify": movement("x"),
    "unpatchify": movement("x"),
    "pad": movement("x"),
    "roll": movement("x"),
    "concat": movement("a"),
    "add": _add,
    "mul": _mul,
}
