"""Known bugs of resampling."""

import numpy as np

from refsd.golden.mutants.mutant import (
    BATCH,
    IMAGE,
    Mutant,
    answer,
    other_output,
)


def bilinear(op, inputs, params):
    x, factor = inputs["x"].values(), params["factor"]
    y = answer(op, inputs, params)
    return (y + np.roll(np.repeat(np.repeat(x, factor, 2), factor, 3), 1, axis=3)) / 2


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "upsample_nearest": (
        IMAGE,
        BATCH,
        Mutant("shifted by a pixel", other_output(lambda y: np.roll(y, 1, axis=3))),
        Mutant("averaged with the neighbour", bilinear),
    ),
}
