"""Known bugs of embeddings of position and time."""

import numpy as np

from refsd.golden.mutants.mutant import (
    Mutant,
    Wrong,
    answer,
    other_input,
    other_params,
)


def embedded(t, dim, max_period, last=0, interleaved=False):
    half = dim // 2
    f = np.exp(-np.log(max_period) * np.arange(half) / (half - last))
    angle = t.astype(np.float64)[:, None] * f
    y = [np.cos(angle), np.sin(angle)]
    flat = np.stack(y, axis=2).reshape(len(t), -1) if interleaved else np.concatenate(y, axis=1)
    return np.pad(flat, ((0, 0), (0, dim % 2))).astype(np.float32)


def wrong_embedding(**how) -> Wrong:
    def wrong(op, inputs, params):
        return embedded(inputs["t"].values(), params["dim"], params["max_period"], **how)

    return wrong


def sines_first(op, inputs, params):
    y, half = answer(op, inputs, params), params["dim"] // 2
    return np.concatenate([y[:, half : 2 * half], y[:, :half], y[:, 2 * half :]], axis=1)


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "timestep_embedding": (
        Mutant("sines first", sines_first),
        Mutant("sines and cosines interleaved", wrong_embedding(interleaved=True)),
        Mutant("divided by half - 1", wrong_embedding(last=1)),
        Mutant("t truncated to an integer", other_input("t", np.trunc)),
        Mutant("period 10000 always", other_params(max_period=lambda p: 10000.0)),
    ),
}
