"""Known bugs of embeddings of position and time."""

import numpy as np

from refsd.golden.mutants.mutant import (
    Mutant,
    Wrong,
    answer,
    other_input,
    other_params,
)
from refsd.kernels.rope import apply_rope, apply_rope_halves


def embedded(t, params, last=0, interleaved=False):
    half, dim = params["dim"] // 2, params["dim"]
    f = np.exp(-np.log(params["max_period"]) * np.arange(half) / (half - params["freq_shift"] - last))
    angle = params["scale"] * t.astype(np.float64)[:, None] * f
    y = [np.sin(angle), np.cos(angle)] if params["sin_first"] else [np.cos(angle), np.sin(angle)]
    flat = np.stack(y, axis=2).reshape(len(t), -1) if interleaved else np.concatenate(y, axis=1)
    return np.pad(flat, ((0, 0), (0, dim % 2))).astype(np.float32)


def wrong_embedding(**how) -> Wrong:
    def wrong(op, inputs, params):
        return embedded(inputs["t"].values(), params, **how)

    return wrong


def turned_as_one_axis(op, inputs, params):
    """Frequencies over the whole head, not anew for each axis."""
    axes_dim = params["axes_dim"]
    ids = np.repeat(inputs["ids"].values(), [dim // 2 for dim in axes_dim], axis=-1)
    f = params["theta"] ** -(np.arange(ids.shape[-1]) / ids.shape[-1])
    turn = apply_rope_halves if params["halves"] else apply_rope
    return turn(inputs["x"].values(), ids * f)


def heads_as_tokens(x: np.ndarray) -> np.ndarray | None:
    """[N, H, L, D] taken for [N, L, H, D]."""
    N, L, H, D = x.shape
    return np.ascontiguousarray(x.reshape(N, H, L, D).transpose(0, 2, 1, 3)) if H > 1 else None


def rows_first(op, inputs, params):
    column, row = np.split(answer(op, inputs, params), 2, axis=-1)
    return np.concatenate([row, column], axis=-1)


def cosines_first(op, inputs, params):
    a, b, c, d = np.split(answer(op, inputs, params), 4, axis=-1)
    return np.concatenate([b, a, d, c], axis=-1)


def pixels_by_column(op, inputs, params):
    y = answer(op, inputs, params)
    H, W = (inputs[name].shape[0] for name in ("rows", "columns"))
    return y.reshape(H, W, -1).swapaxes(0, 1).reshape(y.shape)


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "timestep_embedding": (
        Mutant("sines and cosines exchanged", other_params(sin_first=lambda first: not first)),
        Mutant("sines and cosines interleaved", wrong_embedding(interleaved=True)),
        Mutant("divided by half - 1", wrong_embedding(last=1)),
        Mutant("t truncated to an integer", other_input("t", np.trunc)),
        Mutant("period 10000 always", other_params(max_period=lambda p: 10000.0)),
        Mutant("scale missing", other_params(scale=lambda s: 1.0)),
        Mutant("frequencies not shifted", other_params(freq_shift=lambda s: 0.0)),
    ),
    "rope": (
        Mutant("the other pairing", other_params(halves=lambda halves: not halves)),
        Mutant("turned the other way", other_input("ids", np.negative)),
        Mutant("positions from one", other_input("ids", lambda ids: ids + 1)),
        Mutant("theta 10000 always", other_params(theta=lambda theta: 10000.0)),
        Mutant("axes in the other order", other_input("ids", lambda ids: ids[..., ::-1])),
        Mutant("frequencies over the whole head", turned_as_one_axis),
        Mutant("every token at the first position", other_input("ids", lambda ids: ids[:, :1] + 0 * ids)),
        Mutant("heads and tokens mixed", other_input("x", heads_as_tokens)),
    ),
    "sincos_positions": (
        Mutant("row before column", rows_first),
        Mutant("cosine before sine", cosines_first),
        Mutant("positions from one", other_input("columns", lambda c: c + 1)),
        Mutant("pixels column by column", pixels_by_column),
    ),
}
