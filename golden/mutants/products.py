"""Known bugs of linear layers."""

import numpy as np

from refsd.golden.mutants.block_bytes import block_mutants
from refsd.golden.mutants.mutant import (
    BATCH,
    F16_INPUT,
    F16_WEIGHT,
    NO_BIAS,
    Mutant,
    other_input,
)


def read_as_transposed(w: np.ndarray) -> np.ndarray | None:
    """The same memory taken for the transposed matrix."""
    return np.ascontiguousarray(w.reshape(w.shape[::-1]).T) if w.ndim == 2 and 1 not in w.shape else None


def without_tail(x: np.ndarray) -> np.ndarray:
    """What a loop over whole vectors of 32 leaves out."""
    K = x.shape[-1]
    y = x.copy()
    y[..., K - (K % 32 or 32) :] = 0
    return y


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "linear": (
        Mutant("weight read as its transpose", other_input("weight", read_as_transposed)),
        NO_BIAS,
        Mutant("last columns left out", other_input("x", without_tail)),
        BATCH,
        F16_INPUT,
        F16_WEIGHT,
        *block_mutants("weight"),
    ),
}
