"""Known bugs of what is looked up and expanded."""

import numpy as np

from refsd.golden.mutants.block_bytes import block_mutants
from refsd.golden.mutants.mutant import (
    Mutant,
    first_of_batch,
    other_input,
)

MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "embedding": (
        Mutant("the next row", other_input("ids", lambda ids: np.maximum(ids - 1, 0))),
        Mutant("batch reads the first item", other_input("ids", first_of_batch)),
        *block_mutants("weight"),
    ),
    "dequantize": (*block_mutants("x"),),
}
