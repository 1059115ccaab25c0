"""Embeddings of position and time: mlx.core.fast.rope; the others are composed."""

import math

from refsd.engines.arrays.function import Function, Refusal
from refsd.golden.case import Case


def _timestep_embedding(mlx, x, params):
    mx, half = mlx.core, params["dim"] // 2
    rate = -math.log(params["max_period"]) / (half - params["freq_shift"])
    angle = params["scale"] * x["t"].astype(mx.float32)[:, None] * mx.exp(rate * mx.arange(half, dtype=mx.float32))
    parts = [mx.sin(angle), mx.cos(angle)] if params["sin_first"] else [mx.cos(angle), mx.sin(angle)]
    y = mx.concatenate(parts, axis=-1)
    return mx.pad(y, ((0, 0), (0, params["dim"] % 2))).astype(x["t"].dtype)


def _rope(mlx, x, params):
    """One axis at a time. Tokens become items of the batch: mx.fast.rope takes one position for each item."""
    mx, ids = mlx.core, x["ids"]
    N, L, H, D = x["x"].shape
    ids = mx.broadcast_to(ids, (N, *ids.shape[1:])).reshape(N * L, -1)
    tokens = x["x"].reshape(N * L, H, 1, D)
    parts, start = [], 0
    for axis, dim in enumerate(params["axes_dim"]):
        last = axis == len(params["axes_dim"]) - 1
        part = tokens[..., start:] if last else tokens[..., start : start + dim]
        how = {"traditional": not params["halves"], "base": params["theta"], "scale": 1.0}
        parts.append(mx.fast.rope(part, dim, offset=ids[:, axis], **how))
        start += dim
    return mx.concatenate(parts, axis=-1).reshape(N, L, H, D)


def _sincos_positions(mlx, x, params):
    mx, quarter = mlx.core, params["dim"] // 4
    f = mx.exp(-math.log(10000.0) * mx.arange(quarter, dtype=mx.float32) / quarter)
    row, column = (x[name].astype(mx.float32)[:, None] * f for name in ("rows", "columns"))
    shape = (len(row), len(column), quarter)
    parts = [mx.broadcast_to(t, shape) for t in (column[None], row[:, None])]
    y = mx.concatenate([g(t) for t in parts for g in (mx.sin, mx.cos)], axis=-1)
    return y.reshape(-1, params["dim"]).astype(x["rows"].dtype)


def _one_axis_of_halves(case: Case) -> str | None:
    several = case.params.get("halves") and len(case.params["axes_dim"]) > 1
    return "mx.fast.rope halves a head for one axis alone" if several else None


FUNCTIONS: dict[str, Function] = {
    "timestep_embedding": _timestep_embedding,
    "rope": _rope,
    "sincos_positions": _sincos_positions,
}
REFUSALS: dict[str, Refusal] = {"rope": _one_axis_of_halves}
# Inferred from the answers: the fallback of mlx.core.fast.rope (mlx/fast.cpp) was not read.
ROUNDED = {"rope": "on the CPU mx.fast.rope rounds cosines and sines to the dtype, which no profile declares"}
