"""Embeddings of position and time."""

import numpy as np

from refsd.golden.operations.operation import REQUIRED, Operation, entry, values
from refsd.kernels.sincos_positions import sincos_positions


def _timestep_embedding(a, inputs, params):
    return a.timestep_embedding(values(a, inputs["t"]), **params)


def _rope(a, inputs, params):
    angle = a.rope_angles(inputs["ids"].values(), tuple(params["axes_dim"]), params["theta"])
    turn = a.rope_halves if params["halves"] else a.rope
    return turn(values(a, inputs["x"]), angle)


def _sincos_positions(a, inputs, params):
    rows, columns = (values(a, inputs[name]).astype(np.float64) for name in ("rows", "columns"))
    return a.store(sincos_positions(params["dim"], rows, columns))


OPERATIONS: dict[str, Operation] = {
    "timestep_embedding": entry(
        _timestep_embedding,
        "Cosines, then sines, of scale * t at geometrically spaced frequencies; a zero at the end if dim is odd.",
        {"t": "[N]"},
        "[N, dim]",
        dim=REQUIRED,
        max_period=10000.0,
        freq_shift=0.0,
        scale=1.0,
        sin_first=False,
    ),
    "rope": entry(
        _rope,
        "Turn pairs of channels by position * theta^(-2i/dim) of their axis; halves pairs i with D/2 + i.",
        {"x": "[N, L, H, D]", "ids": "[N or 1, L, A]"},
        "[N, L, H, D]",
        axes_dim=REQUIRED,
        theta=10000.0,
        halves=False,
    ),
    "sincos_positions": entry(
        _sincos_positions,
        "Sines and cosines of each pixel's column, then of its row.",
        {"rows": "[H]", "columns": "[W]"},
        "[H*W, dim]",
        dim=REQUIRED,
    ),
}
