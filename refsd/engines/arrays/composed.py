"""Operations that no array library has a function for: users compose them of operators, the same in each."""

from collections.abc import Callable
from typing import Any

from refsd.engines.arrays.function import Function

# x, the axes in their new order -> x
Permute = Callable[[Any, tuple[int, ...]], Any]


def modulated(y, x):
    """y [N, L, D], x: scale and shift [N, D]"""
    return y * (1 + x["scale"][:, None]) + x["shift"][:, None]


def _pixel_unshuffle(permute: Permute, x, r: int):
    """[N, C, H, W] -> [N, C r r, H / r, W / r]"""
    N, C, H, W = x.shape
    return permute(x.reshape(N, C, H // r, r, W // r, r), (0, 1, 3, 5, 2, 4)).reshape(N, C * r * r, H // r, W // r)


def _pixel_shuffle(permute: Permute, x, r: int):
    """[N, C r r, H, W] -> [N, C, H r, W r]"""
    N, D, H, W = x.shape
    return permute(x.reshape(N, D // r**2, r, r, H, W), (0, 1, 4, 2, 5, 3)).reshape(N, D // r**2, H * r, W * r)


def _patchify(permute: Permute, x, params):
    """[N, C, H, W] -> [N, L, C p p], or [N, L, p p C]"""
    p = params["patch"]
    N, C, H, W = x.shape
    order = (0, 2, 4, 3, 5, 1) if params["channels_last"] else (0, 2, 4, 1, 3, 5)
    return permute(x.reshape(N, C, H // p, p, W // p, p), order).reshape(N, H * W // p**2, C * p * p)


def _unpatchify(permute: Permute, x, params):
    p, h = params["patch"], params["height"]
    N, L, D = x.shape
    w, C = L // h, D // p**2
    if params["channels_last"]:
        x = permute(x.reshape(N, h, w, p, p, C), (0, 5, 1, 3, 2, 4))
    else:
        x = permute(x.reshape(N, h, w, C, p, p), (0, 3, 1, 4, 2, 5))
    return x.reshape(N, C, h * p, w * p)


def composed(permute: Permute) -> dict[str, Function]:
    """Return the operations, of a library that reorders axes by `permute`."""
    return {
        "modulate": lambda lib, x, params: modulated(x["x"], x),
        "gated_add": lambda lib, x, params: x["x"] + x["gate"][:, None] * x["h"],
        "add": lambda lib, x, params: x["a"] + x["b"],
        "mul": lambda lib, x, params: x["a"] * x["b"],
        "pixel_unshuffle": lambda lib, x, params: _pixel_unshuffle(permute, x["x"], params["factor"]),
        "pixel_shuffle": lambda lib, x, params: _pixel_shuffle(permute, x["x"], params["factor"]),
        "patchify": lambda lib, x, params: _patchify(permute, x["x"], params),
        "unpatchify": lambda lib, x, params: _unpatchify(permute, x["x"], params),
    }
