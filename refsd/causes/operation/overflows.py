"""NaN, infinity and zeros by an operation's own formula: exp and squares that overflow, and what follows.

A formula that is right in real numbers may have an intermediate result beyond its type: then inf / inf and
inf - inf are NaN. Each formula is computed here as an engine might, in float32 and in float16.
"""

from collections.abc import Iterator

import numpy as np

from refsd.golden.mutations import answer
from refsd.golden.operation import Inputs, Operation, Params
from refsd.kernels.attention import causal_mask
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32

_NORMS = frozenset({"layer_norm", "group_norm", "group_norm_silu", "adaptive_layer_norm"})


def overflows(op: Operation, inputs: Inputs, params: Params, found: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, answer) of each formula of the operation that overflows in this case.

    params: complete; found: the engine's answer. Where it is finite, only sums may have overflowed: x / inf is 0.
    """
    finite = bool(np.isfinite(found).all())
    for kind in (_Exponentials, _Squares, _OnePass):
        if op.name not in (kind.sums if finite else kind.operations | kind.sums):
            continue
        for dtype, narrow_sums in ((np.float32, False), (np.float16, False), (np.float16, True)):
            formula = kind(dtype, narrow_sums)
            with np.errstate(all="ignore"):
                y = op.run(formula, inputs, params)
            if formula.overflowed if op.name in kind.sums else not np.isfinite(y).all():
                yield kind.phrase.format(np.dtype(dtype).name), np.asarray(y, np.float32)
    if not finite:
        yield from _negative_variance(op, inputs, params, found)


class _Formula(Arithmetic):
    """The operations in float32, some of them by a formula whose intermediate results are of `dtype`.

    narrow_sums: add up in `dtype`, not in float32
    phrase:      with {} for the type
    operations:  in which the formula may overflow; sums: those in which a sum may, with a finite answer
    overflowed:  whether a sum has
    """

    phrase: str
    operations: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()

    def __init__(self, dtype: type, narrow_sums: bool):
        super().__init__(FLOAT32)
        self._dtype, self._sum, self.overflowed = dtype, dtype if narrow_sums else np.float32, False

    @property
    def _fuses(self) -> bool:
        return False

    def group_norm_silu(self, x, weight, bias, num_groups=32, eps=1e-5):
        return self.silu(self.group_norm(x, weight, bias, num_groups, eps))

    def _total(self, y: np.ndarray) -> np.ndarray:
        total = y.sum(axis=-1, keepdims=True, dtype=self._sum)
        self.overflowed |= not np.isfinite(total).all()
        return total


class _Exponentials(_Formula):
    """exp(x) / sum exp(x), and functions by exp(x) where exp(-x) would not overflow."""

    phrase = "exp overflows {}: what is divided by its sum is inf / inf"
    operations = frozenset({"sigmoid", "silu", "quick_gelu", "gelu_tanh", "tanh", "swiglu", "swiglu_oai"})
    sums = frozenset({"softmax", "attention"})

    def softmax(self, x, scale=1.0, mask=None, sinks=None):
        s = x * np.float32(scale) + (0 if mask is None else np.asarray(mask, np.float32))
        return self._weights(s, None if sinks is None else np.asarray(sinks)[:, None, None])

    def _weights(self, s, sinks):
        e = np.exp(s.astype(self._dtype))
        total = self._total(e)
        total = total if sinks is None else total + np.exp(sinks.astype(self._dtype))
        return (e / total).astype(np.float32)

    def attention(self, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
        s, v = _scores(q, k, v, scale, mask, diagonal)
        p = self._weights(s, None if sinks is None else np.asarray(sinks)[:, None, None])
        return (p @ v).transpose(0, 2, 1, 3)

    def sigmoid(self, x):
        e = np.exp(np.asarray(x, self._dtype))
        return (e / (1 + e)).astype(np.float32)

    def silu(self, x):
        return np.asarray(x, np.float32) * self.sigmoid(x)

    def quick_gelu(self, x):
        return np.asarray(x, np.float32) * self.sigmoid(1.702 * np.asarray(x, np.float32))

    def gelu(self, x, approximate="none"):
        if approximate == "none":
            return super().gelu(x)
        x = np.asarray(x, np.float32)
        a = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
        return x * self.sigmoid(2 * a)

    def apply(self, kernel, *arrays, **params):
        if kernel.__name__ != "tanh":
            return super().apply(kernel, *arrays, **params)
        e = np.exp(2 * np.asarray(arrays[0], self._dtype))
        return ((e - 1) / (e + 1)).astype(np.float32)


class _Squares(_Formula):
    """Squares in the type; the deviation of a row with an overflow is infinite, and x / inf is 0."""

    phrase = "squares overflow {}"
    sums = _NORMS | {"rms_norm", "l2_norm"}

    def _normalised(self, rows, eps, centred: bool):
        x = rows.astype(self._dtype)
        n = self._sum(x.shape[-1])
        mean = self._total(x) / n if centred else self._dtype(0)
        x = x - mean
        return (x / np.sqrt(self._variance(x, mean, n) + self._sum(eps))).astype(np.float32)

    def _variance(self, centred, mean, n):
        return self._total(centred * centred) / n

    def layer_norm(self, x, weight=None, bias=None, eps=1e-5):
        y = self._normalised(x, eps, True)
        return y * (1 if weight is None else weight) + (0 if bias is None else bias)

    def group_norm(self, x, weight, bias, num_groups=32, eps=1e-5):
        y = self._normalised(x.reshape(len(x), num_groups, -1), eps, True).reshape(x.shape)
        along = (-1, *[1] * (x.ndim - 2))
        return y * np.reshape(weight, along) + np.reshape(bias, along)

    def rms_norm(self, x, weight, eps=1e-6):
        return self._normalised(x, eps, False) * (1 if weight is None else weight)

    def l2_norm(self, x, eps=1e-12):
        x = np.asarray(x, self._dtype)
        length = np.sqrt(self._total(x * x))
        return (x / np.maximum(length, self._sum(eps))).astype(np.float32)


class _OnePass(_Squares):
    """E[x^2] - E[x]^2 with both in the type."""

    phrase = "squares overflow {}: inf - inf in the variance, in one pass"
    sums = _NORMS

    def _variance(self, centred, mean, n):
        x = centred + mean
        return self._total(x * x) / n - mean * mean


def _scores(q, k, v, scale, mask, diagonal) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores [B, H, L, J] in float32, and the values [B, H, J, E]."""
    q, k, v = (np.asarray(t, np.float32).transpose(0, 2, 1, 3) for t in (q, k, v))
    k, v = (np.repeat(t, q.shape[1] // t.shape[1], axis=1) for t in (k, v))
    s = np.float32(q.shape[-1] ** -0.5 if scale is None else scale) * (q @ k.swapaxes(-1, -2))
    s = s if mask is None else s + np.asarray(mask, np.float32)
    return s if diagonal is None else s + causal_mask(s.shape[2], np.float32, s.shape[3], diagonal), v


def _negative_variance(op: Operation, inputs: Inputs, params: Params, found: np.ndarray):
    """Yield (phrase, answer) if the rows that are NaN are rows in which E[x^2] - E[x]^2 may round below zero."""
    if op.name not in _NORMS:
        return
    x = inputs["x"].values().astype(np.float64)
    rows = x.reshape(len(x) * params.get("num_groups", 1), -1) if "num_groups" in params else None
    rows = x.reshape(-1, x.shape[-1]) if rows is None else rows
    lost = np.isnan(found.reshape(rows.shape)).all(axis=1)
    if x.shape != found.shape or not lost.any() or np.isnan(found.reshape(rows.shape)[~lost]).any():
        return
    rounding = rows.shape[1] * 2.0**-24 * (rows**2).mean(axis=1)
    if (rows[lost].var(axis=1) + params["eps"] <= 2 * rounding[lost]).all():
        right = answer(op, inputs, params).reshape(rows.shape)
        cancelled = rows.var(axis=1) <= 64 * rounding
        y = np.where(cancelled[:, None], found.reshape(rows.shape), right)
        yield "the variance in one pass, E[x^2] - E[x]^2, rounds below zero: the root of it", y.reshape(x.shape)
