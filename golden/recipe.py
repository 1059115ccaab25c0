"""Numbers from names: weights and inputs that forty lines in any language reproduce bit for bit.

The specification is in README.md beside this file.
"""

import msgspec

from refsd.golden.tensor import StoredTensor


class Recipe(msgspec.Struct, frozen=True):
    """
    shape:    in torch's order
    type:     storage type: "f32", "f16", "bf16", "i32", "i64", "q4_0", ...
    data:     a data set of DATA_SETS: "bell", "integers", "outliers", ...
    exponent: values are integers times 2**exponent
    offset:   added to every value
    seed:     another draw of the same name
    """

    shape: tuple[int, ...]
    type: str = "f32"
    data: str = "bell"
    exponent: int = -15
    offset: float = 0.0
    seed: int = 0


def realize(recipe: Recipe, name: str) -> StoredTensor:
    """Make the tensor that `recipe` describes, keyed by `name`."""
    raise NotImplementedError
