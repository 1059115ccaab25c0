"""Padding, rolling, joining and lookup by mlx.core."""

from refsd.engines.arrays.function import Function, Refusal
from refsd.golden.case import Case

_MODES = {"zero": "constant", "replicate": "edge", "reflect": "reflect"}


def _pad(mlx, x, params):
    top, bottom, left, right = params["padding"]
    return mlx.core.pad(x["x"], ((0, 0), (0, 0), (top, bottom), (left, right)), mode=_MODES[params["mode"]])


def _no_mode(case: Case) -> str | None:
    mode = case.params.get("mode", "zero")
    return None if mode in _MODES else f"mlx.core.pad has no {mode}"


FUNCTIONS: dict[str, Function] = {
    "pad": _pad,
    "roll": lambda mlx, x, params: mlx.core.roll(x["x"], (params["down"], params["right"]), (2, 3)),
    "concat": lambda mlx, x, params: mlx.core.concatenate([x["a"], x["b"]], axis=params["axis"]),
    "embedding": lambda mlx, x, params: x["weight"][x["ids"]],
}
REFUSALS: dict[str, Refusal] = {"pad": _no_mode}
