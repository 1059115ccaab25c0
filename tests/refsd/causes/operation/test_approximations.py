"""Functions computed approximately, sums and intermediate results in small types, blocks that overlap: named."""

import re

import ml_dtypes
import numpy as np
import pytest
from naming import named

from refsd.golden.mutations import answer
from refsd.numerics.tensor import stored


def _values(inputs, *names):
    return (inputs[name].values().astype(np.float64) for name in names)


def _attended(exponential, tile=1 << 20, rounded=lambda e: e):
    """Attention tile by tile. exponential: of a score less the largest; rounded: of what multiplies values"""

    def wrong(op, inputs, params):
        q, k, v = _values(inputs, *"qkv")
        s = np.einsum("blhd,bjhd->bhlj", q, k) * q.shape[-1] ** -0.5
        if params["causal"]:
            s = np.where(np.arange(s.shape[-1]) > np.arange(s.shape[-2])[:, None], -np.inf, s)
        s, top, total, y = s.astype(np.float32), np.full((*s.shape[:-1], 1), -np.inf), 0.0, 0.0
        for j in range(0, s.shape[-1], tile):
            own = np.maximum(top, s[..., j : j + tile].max(axis=-1, keepdims=True))
            less = np.exp(np.where(np.isneginf(top), -np.inf, top - own))
            e = exponential((s[..., j : j + tile] - own).astype(np.float32)).astype(np.float64)
            total = total * less + e.sum(axis=-1, keepdims=True)
            values = v[:, j : j + tile].transpose(0, 2, 1, 3)
            y, top = y * less + rounded(e).astype(np.float64) @ values, own
        return (y / total).transpose(0, 2, 1, 3)

    return wrong


def _small_gelu(op, inputs, params):
    (x,) = _values(inputs, "x")
    return np.where(np.abs(x) > 3, np.maximum(x, 0), answer(op, inputs, params))


def _last_sixteen_again(op, inputs, params):
    (x,) = _values(inputs, "x")
    K = x.shape[-1]
    x[..., K - 16 : K // 16 * 16] *= 2
    return answer(op, {**inputs, "x": stored(x.astype(np.float32))}, params)


def _rounded_norm(op, inputs, params):
    (x,) = _values(inputs, "x")
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + params["eps"])
    return y.astype(np.float16) * inputs["weight"].values().astype(np.float64) + inputs["bias"].values()


def _keys_at_values_stride(op, inputs, params):
    (k,) = _values(inputs, "k")
    D, E = k.shape[-1], inputs["v"].shape[-1]
    at = np.arange(k.size // D)[:, None] * E + np.arange(D)
    memory = np.pad(k.ravel(), (0, max(0, int(at.max()) + 1 - k.size)))
    return answer(op, {**inputs, "k": stored(memory[at].reshape(k.shape).astype(np.float32))}, params)


_SELF, _CROSS = "attention/f32/self-b2-l35-j35-h2-d40", "attention/f32/cross-b2-l20-j77-h2-d40"
_BUGS = {
    "float16 by tiles": (
        _CROSS,
        _attended(np.exp, 32, lambda e: e.astype(np.float16)),
        "rounded to float16 in tiles of 32 scores, after they are added up",
    ),
    "bfloat16 by tiles, where one number in a row is rounded the other way": (
        "attention/f32/causal-b1-l77-j77-h2-d64",
        _attended(np.exp, 64, lambda e: e.astype(ml_dtypes.bfloat16)),
        "rounded to bfloat16 in tiles of 64 scores, after they are added up",
    ),
    "a GELU that ends early": ("gelu/f32/bend-x33x77", _small_gelu, r"max\(x, 0\) where \|x\| > 3"),
    "blocks that overlap": (
        "linear/f32/awkward-x2x33x77-o20",
        _last_sixteen_again,
        "61 to 63 of 77 along the inputs are summed twice|the last 16 are read as one block",
    ),
    "a maximum that starts at a subnormal number": (
        "max_pool2d/f32/border-n2-c7-h9-w12",
        lambda op, inputs, params: np.maximum(answer(op, inputs, params), np.float32(1e-40)),
        "^the maximum starts at 0$",
    ),
    "a norm before its weight": (
        NORM := "layer_norm/f32/plain-x2x77x64",
        _rounded_norm,
        "numbers rounded to float16",
    ),
    "keys at the stride of values": (
        "attention/f32/wide-values-b2-l20-j33-h2-d32-e96",
        _keys_at_values_stride,
        "k: its rows are sought at a stride of 96 numbers, as the other's",
    ),
}


@pytest.mark.parametrize("what", _BUGS)
def test_what_is_approximate_is_named(what):
    case, wrong, cause = _BUGS[what]
    causes = named(case, wrong)
    assert causes and re.search(cause, causes[0]), causes
