"""Padding, rolling, joining and lookup by jax.numpy."""

from refsd.engines.arrays.function import Function

_MODES = {"zero": "constant", "replicate": "edge", "reflect": "reflect", "circular": "wrap"}


def _pad(jax, x, params):
    top, bottom, left, right = params["padding"]
    return jax.numpy.pad(x["x"], ((0, 0), (0, 0), (top, bottom), (left, right)), mode=_MODES[params["mode"]])


FUNCTIONS: dict[str, Function] = {
    "pad": _pad,
    "roll": lambda jax, x, params: jax.numpy.roll(x["x"], (params["down"], params["right"]), (2, 3)),
    "concat": lambda jax, x, params: jax.numpy.concatenate([x["a"], x["b"]], axis=params["axis"]),
    "embedding": lambda jax, x, params: jax.numpy.take(x["weight"], x["ids"], axis=0),
}
