"""Estimate the memory of a model's taps before a run, and measure that of recorded taps."""

import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np

from refsd.components import COMPONENTS
from refsd.golden.case import Case, ModelRecipe
from refsd.weights.recipes import shapes

# Pixels that a decoder makes from one latent pixel: 8 x 8.
_ENLARGED = 64


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


def within_bytes(taps: Mapping[str, np.ndarray], copies: int, room: int, most: int) -> Iterator[str]:
    """Yield the first taps, at most `most`, whose `copies` float64 copies fit in `room` bytes; at least one."""
    for i, (name, y) in enumerate(itertools.islice(taps.items(), most)):
        room -= 8 * y.size * copies
        if i and room < 0:
            return
        yield name
