"""Padding, rolling, joining and lookup by Tensor's methods."""

from refsd.engines.arrays.function import Function

_MODES = {"zero": "constant", "replicate": "replicate", "reflect": "reflect", "circular": "circular"}


def _pad(tinygrad, x, params):
    top, bottom, left, right = params["padding"]
    return x["x"].pad((left, right, top, bottom), mode=_MODES[params["mode"]])


FUNCTIONS: dict[str, Function] = {
    "pad": _pad,
    "roll": lambda tinygrad, x, params: x["x"].roll((params["down"], params["right"]), (2, 3)),
    "concat": lambda tinygrad, x, params: x["a"].cat(x["b"], dim=params["axis"]),
    "embedding": lambda tinygrad, x, params: x["weight"][x["ids"]],
}
