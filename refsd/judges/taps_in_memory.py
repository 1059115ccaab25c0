"""How much memory the taps of a model need, before anything is computed."""

import math

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
