"""A Case: an operation or model, its inputs as recipes, and its parameters, for any engine to compute."""

from typing import Any

import msgspec

from refsd.golden.recipe import Recipe, realize
from refsd.numerics.tensor import StoredTensor

# A dimension of a network: channels, blocks, a switch, or a number for each level or block.
Dimension = int | bool | None | tuple[int | tuple[int, ...], ...]


class ModelRecipe(msgspec.Struct, frozen=True):
    """The weights of a whole model, by recipe.

    family: "sd15"
    type:   storage type of the large matrices: "f32", "f16", "q8_0", ...
    tiny:   a small configuration of the same architecture
    quiet:  divides weights, except of norms and modulations, by 2**quiet, so that the norms' eps matters
    sizes:  ("network.dimension", value): dimensions in place of those of the full or tiny configuration. Left
            out of the text where there are none, so that digests of other recipes stay as they were
    """

    family: str
    type: str = "f32"
    tiny: bool = False
    quiet: int = 0
    sizes: tuple[tuple[str, Dimension], ...] | msgspec.UnsetType = msgspec.UNSET


class Case(msgspec.Struct, frozen=True):
    """One question to an engine.

    name:   unique, with slashes: "conv2d/f16/n2-c33-k64-h17-w20"
    op:     an operation of operations/ ("conv2d"), "model/<component>" ("model/unet"), "trajectory", or "picture"
    inputs: argument name -> recipe; realised under the key "<case name>/<argument name>"
    params: arguments that are not tensors (stride, eps, ...)
    model:  for "model/..." and "picture": the weights
    """

    name: str
    op: str
    inputs: dict[str, Recipe]
    params: dict[str, Any] = {}
    model: ModelRecipe | None = None

    def realize(self) -> dict[str, StoredTensor]:
        """Return every input, made from its recipe."""
        return {arg: realize(recipe, f"{self.name}/{arg}") for arg, recipe in self.inputs.items()}
