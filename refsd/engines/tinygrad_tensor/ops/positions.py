"""Embeddings of position and time, composed in float32 as tinygrad's own models (extra/models, examples) do."""

import math

from refsd.engines.arrays.function import Function


def _frequencies(tinygrad, pairs: int, rate: float):
    """exp(-rate i)"""
    return (tinygrad.Tensor.arange(pairs, dtype=tinygrad.dtypes.float32) * -rate).exp()


def _timestep_embedding(tinygrad, x, params):
    half = params["dim"] // 2
    f = _frequencies(tinygrad, half, math.log(params["max_period"]) / (half - params["freq_shift"]))
    angle = params["scale"] * x["t"].float()[:, None] * f
    parts = [angle.sin(), angle.cos()] if params["sin_first"] else [angle.cos(), angle.sin()]
    return parts[0].cat(parts[1], dim=-1).pad(((0, 0), (0, params["dim"] % 2)))


def _rope(tinygrad, x, params):
    Tensor, ids, turned = tinygrad.Tensor, x["ids"].float(), sum(params["axes_dim"])
    parts = [
        ids[..., axis : axis + 1] * _frequencies(tinygrad, dim // 2, 2 * math.log(params["theta"]) / dim)
        for axis, dim in enumerate(params["axes_dim"])
    ]
    angle = Tensor.cat(*parts, dim=-1)[:, :, None]
    first, rest = x["x"][..., :turned], x["x"][..., turned:]
    a, b = first.chunk(2, dim=-1) if params["halves"] else (first[..., 0::2], first[..., 1::2])
    pair = [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]
    y = Tensor.cat(*pair, dim=-1) if params["halves"] else Tensor.stack(*pair, dim=-1).reshape(first.shape)
    return y.cat(rest, dim=-1) if rest.shape[-1] else y


def _sincos_positions(tinygrad, x, params):
    quarter = params["dim"] // 4
    f = _frequencies(tinygrad, quarter, math.log(10000.0) / quarter)
    row, column = (x[name].float()[:, None] * f for name in ("rows", "columns"))
    shape = (row.shape[0], column.shape[0], quarter)
    angles = [column[None].expand(shape), row[:, None].expand(shape)]
    parts = [part for angle in angles for part in (angle.sin(), angle.cos())]
    return tinygrad.Tensor.cat(*parts, dim=-1).reshape(-1, params["dim"])


FUNCTIONS: dict[str, Function] = {
    "timestep_embedding": _timestep_embedding,
    "rope": _rope,
    "sincos_positions": _sincos_positions,
}
