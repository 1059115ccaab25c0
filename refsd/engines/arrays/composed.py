"""Operations that no array library has a function for: users compose them of operators, the same in each."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

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


class Names(NamedTuple):
    """A library whose arrays and functions are called as NumPy's are. Each field takes the library first.

    np: -> the module of these functions; silu, gelu, sigmoid, softmax (of the last axis): x -> the same shape
    """

    np: Callable[[Any], Any]
    silu: Callable[[Any, Any], Any]
    gelu: Callable[[Any, Any], Any]
    sigmoid: Callable[[Any, Any], Any]
    softmax: Callable[[Any, Any], Any]


def numpy_like(of: Names) -> dict[str, Function]:
    """Return the operations that such libraries compose alike."""

    def geglu(lib, x, params):
        value, gate = of.np(lib).split(x["x"], 2, axis=-1)
        return value * of.gelu(lib, gate)

    def swiglu(lib, x, params):
        first, second = of.np(lib).split(x["x"], 2, axis=-1)
        return first * of.silu(lib, second) if params["second_gates"] else of.silu(lib, first) * second

    def swiglu_oai(lib, x, params):
        """As openai/gpt-oss writes it."""
        np, limit = of.np(lib), params["limit"]
        gate, value = np.minimum(x["gate"], limit), np.clip(x["value"], -limit, limit)
        return gate * of.sigmoid(lib, params["alpha"] * gate) * (value + 1)

    def softmax(lib, x, params):
        scores = x["x"] * params["scale"]
        scores = scores + x["mask"] if "mask" in x else scores
        if "sinks" not in x:
            return of.softmax(lib, scores)
        column = of.np(lib).broadcast_to(x["sinks"][:, None, None], (*scores.shape[:-1], 1))
        return of.softmax(lib, of.np(lib).concatenate([scores, column], axis=-1))[..., :-1]

    def l2_norm(lib, x, params):
        length = of.np(lib).linalg.norm(x["x"], axis=-1, keepdims=True)
        return x["x"] / of.np(lib).maximum(length, params["eps"])

    def timestep_embedding(lib, x, params):
        """In float32, as users write it."""
        np, half = of.np(lib), params["dim"] // 2
        rate = -math.log(params["max_period"]) / (half - params["freq_shift"])
        f = np.exp(rate * np.arange(half, dtype=np.float32))
        angle = params["scale"] * x["t"].astype(np.float32)[:, None] * f
        parts = [np.sin(angle), np.cos(angle)] if params["sin_first"] else [np.cos(angle), np.sin(angle)]
        y = np.concatenate(parts, axis=-1)
        return np.pad(y, ((0, 0), (0, params["dim"] % 2))).astype(x["t"].dtype)

    def sincos_positions(lib, x, params):
        np, quarter = of.np(lib), params["dim"] // 4
        f = 10000.0 ** (-np.arange(quarter, dtype=np.float32) / quarter)
        row, column = (x[name].astype(np.float32)[:, None] * f for name in ("rows", "columns"))
        shape = (len(row), len(column), quarter)
        parts = [np.broadcast_to(t, shape) for t in (column[None], row[:, None])]
        y = np.concatenate([g(t) for t in parts for g in (np.sin, np.cos)], axis=-1)
        return y.reshape(-1, params["dim"]).astype(x["rows"].dtype)

    return {
        "silu": lambda lib, x, params: of.silu(lib, x["x"]),
        "gelu": lambda lib, x, params: of.gelu(lib, x["x"]),
        "geglu": geglu,
        "sigmoid": lambda lib, x, params: of.sigmoid(lib, x["x"]),
        "tanh": lambda lib, x, params: of.np(lib).tanh(x["x"]),
        "swiglu": swiglu,
        "swiglu_oai": swiglu_oai,
        "softmax": softmax,
        "l2_norm": l2_norm,
        "timestep_embedding": timestep_embedding,
        "sincos_positions": sincos_positions,
        "roll": lambda lib, x, params: of.np(lib).roll(x["x"], (params["down"], params["right"]), (2, 3)),
        "concat": lambda lib, x, params: of.np(lib).concatenate([x["a"], x["b"]], axis=params["axis"]),
    }
