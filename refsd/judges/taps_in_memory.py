"""How much memory the taps of a model need: before anything is computed, and of those that are there."""

import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np

from refsd.components import COMPONENTS
from refsd.golden.case import Case, ModelRecipe
from refsd.weights.recipes import shapes

# Pixels that a decoder makes of one of its latents.
_ENLARGED = 64


def bytes_of_taps(model: ModelRecipe, case: Case) -> int:
    """At most: each row of each weight has a float64 number for each pixel or token that goes in, or comes out."""
    part = COMPONENTS[case.op.removeprefix("model/")].part or ""
    rows = sum(shape[0] for shape in shapes(model)[part].values() if len(shape) > 1)
    positions = 0
    for name, recipe in case.inputs.items():
        pixels = math.prod(recipe.shape) // recipe.shape[1] if len(recipe.shape) == 4 else 0
        tokens = math.prod(recipe.shape[:2]) if len(recipe.shape) == 3 or name == "input_ids" else 0
        positions += _ENLARGED * pixels if name == "z" else pixels + tokens
    return 8 * rows * positions


def bytes_of(taps: Mapping[str, np.ndarray]) -> int:
    """In float64."""
    return sum(8 * y.size for y in taps.values())


def within_bytes(taps: Mapping[str, np.ndarray], copies: int, room: int, most: int) -> Iterator[str]:
    """The first taps, `most` at most, of which so many copies in float64 fit in `room` bytes; one in any case."""
    for i, (name, y) in enumerate(itertools.islice(taps.items(), most)):
        room -= 8 * y.size * copies
        if i and room < 0:
            return
        yield name
