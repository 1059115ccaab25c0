"""Estimate the memory of a model's taps before a run, and measure that of recorded taps."""

import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np

from refsd.causes.operation.unlisted import KEPT
from refsd.components import COMPONENTS
from refsd.golden.case import Case, ModelRecipe
from refsd.weights.recipes import shapes

# Pixels that a decoder makes from one latent pixel: 8 x 8.
_ENLARGED = 64
# The errors of random roundings are kept for so many taps at most.
_MOST_TAPS = 20


def bytes_of_taps(model: ModelRecipe, case: Case) -> int:
    """Return an upper estimate: one float64 number for each row of each weight, at each pixel or token."""
    part = COMPONENTS[case.op.removeprefix("model/")].part or ""
    rows = sum(shape[0] for shape in shapes(model)[part].values() if len(shape) > 1)
    positions = 0
    for name, recipe in case.inputs.items():
        pixels = math.prod(recipe.shape) // recipe.shape[1] if len(recipe.shape) == 4 else 0
        tokens = math.prod(recipe.shape[:2]) if len(recipe.shape) == 3 or name == "input_ids" else 0
        positions += _ENLARGED * pixels if name == "z" else pixels + tokens
    return 8 * rows * positions


def bytes_of(taps: Mapping[str, np.ndarray]) -> int:
    """Return the size of the taps in float64."""
    return sum(8 * y.size for y in taps.values())


def may_be_kept(case: Case) -> bool:
    """Return True if a model's taps and the inputs of its products take at most KEPT bytes."""
    return case.model is not None and 2 * bytes_of_taps(case.model, case) <= KEPT


def with_errors_kept(wrong: Mapping[str, np.ndarray], runs: int, room: int) -> Iterator[str]:
    """Yield the first wrong taps, for which the errors of `runs` runs are kept, to judge projections by.

    They take `room` bytes at most, or KEPT if that is more. The first is always kept.
    """
    room = max(room, KEPT)
    for i, (name, y) in enumerate(itertools.islice(wrong.items(), _MOST_TAPS)):
        room -= 8 * y.size * runs
        if i and room < 0:
            return
        yield name
