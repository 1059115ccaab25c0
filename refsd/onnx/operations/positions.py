"""Embeddings of position and time as ONNX nodes, their angles in float32."""

import numpy as np

from refsd.onnx.operations.function import Function


def _constant(b, values):
    return b.constant(np.asarray(values, np.float64).astype(b.dtype))


def _timestep_embedding(b, x, params):
    half = params["dim"] // 2
    f = params["max_period"] ** -(np.arange(half) / (half - params["freq_shift"]))
    t = b.node("Mul", b.node("Unsqueeze", x["t"], [1]), _constant(b, f))
    angle = t if params["scale"] == 1 else b.node("Mul", t, params["scale"])
    names = ("Sin", "Cos") if params["sin_first"] else ("Cos", "Sin")
    parts = [b.node(name, angle) for name in names]
    if params["dim"] % 2:
        parts.append(_constant(b, np.zeros((*x["t"].shape, 1))))
    return b.concat(parts, 1)


def _rope(b, x, params):
    """RotaryEmbedding is of opset 23."""
    D = x["x"].shape[-1]
    ids, parts = b.cast(x["ids"], np.float32), []
    for axis, dim in enumerate(params["axes_dim"]):
        f = params["theta"] ** -(np.arange(0, dim, 2) / dim)
        parts.append(b.node("Mul", b.slice(ids, 2, axis, axis + 1), _constant(b, f)))
    angle = b.node("Unsqueeze", b.concat(parts, 2), [2])  # [N or 1, L, 1, pairs]
    turned = 2 * angle.shape[-1]
    rotated = b.slice(x["x"], 3, 0, turned) if turned < D else x["x"]
    y = turn(b, rotated, b.node("Cos", angle), b.node("Sin", angle), params["halves"])
    return b.concat([y, b.slice(x["x"], 3, turned, D)], 3) if turned < D else y


def turn(b, x, c, s, halves):
    """y = c x - s x', y' = s x + c x', for each pair (x, x'). c and s: [N or 1, L, 1, D / 2]"""
    N, L, H, D = x.shape
    if halves:
        first, second = b.halves(x)
    else:
        pairs = b.reshape(x, (N, L, H, D // 2, 2))
        first, second = (b.node("Squeeze", b.slice(pairs, 4, i, i + 1), [4]) for i in (0, 1))
    turned = (
        b.node("Sub", b.node("Mul", first, c), b.node("Mul", second, s)),
        b.node("Add", b.node("Mul", first, s), b.node("Mul", second, c)),
    )
    if halves:
        return b.concat(turned, 3)
    return b.reshape(b.concat([b.node("Unsqueeze", part, [4]) for part in turned], 4), (N, L, H, D))


def _sincos_positions(b, x, params):
    quarter = params["dim"] // 4
    f = _constant(b, 10000.0 ** -(np.arange(quarter) / quarter))
    H, W = x["rows"].shape[0], x["columns"].shape[0]
    parts = []
    for name, shape in (("columns", (1, W, 1)), ("rows", (H, 1, 1))):
        angle = b.node("Mul", b.reshape(x[name], shape), f)
        parts += [b.node("Expand", b.node(wave, angle), [H, W, quarter]) for wave in ("Sin", "Cos")]
    return b.reshape(b.concat(parts, 2), (H * W, params["dim"]))


FUNCTIONS: dict[str, Function] = {
    "timestep_embedding": _timestep_embedding,
    "rope": _rope,
    "sincos_positions": _sincos_positions,
}
