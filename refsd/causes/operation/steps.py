"""Norms and attention written a second time, step by step, so that a bug can replace one step at a time.

A declaration says nothing of what happens inside an operation. Here each of these two families has the steps of its
equation; a bug is one step replaced: another mean, another sum of squares, eps elsewhere, a softmax along another
axis, scores rounded early.
"""

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from refsd.causes.operation.function_steps import NAMES, other_functions
from refsd.causes.operation.product_steps import linear_steps, rope_steps, rounded
from refsd.golden.mutations import answer
from refsd.golden.operation import Inputs, Operation, Params
from refsd.numerics.tensor import stored

Named = Iterator[tuple[str, np.ndarray]]
Step = Callable[..., np.ndarray]


def stepwise(op: Operation, inputs: Inputs, params: Params) -> Named:
    """Yield the answers with one step replaced; nothing for an operation of another family. params: complete"""
    values = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    family = _FAMILIES.get(op.name)
    if family is None:
        return
    with np.errstate(all="ignore"):
        for name, y in family(op.name, values, params):
            yield name, y.astype(np.float32)


def bordered(op: Operation, inputs: Inputs, params: Params) -> Named:
    """Yield the answers with a picture's border filled with something other than zeros. params: complete"""
    x = inputs["x"].values() if "x" in inputs else np.zeros(0)
    padding = params.get("padding")
    if x.ndim != 4 or not isinstance(padding, tuple) or len(padding) != 4 or not any(padding) or op.name == "pad":
        return
    top, bottom, left, right = padding
    sides = ((0, 0), (0, 0), (top, bottom), (left, right))
    rest = {**params, "padding": (0, 0, 0, 0)}
    for mode, phrase in _BORDERS.items():
        if mode == "edge" or max(padding) < min(x.shape[2:]):
            yield phrase, answer(op, {**inputs, "x": stored(np.ascontiguousarray(np.pad(x, sides, mode)))}, rest)  # type: ignore[call-overload]
    wide = _next_rows(x, left, right)
    rest = {**params, "padding": (top, bottom, 0, 0)}
    phrase = "no border left and right: the rows before and behind are read there, as neighbouring memory"
    yield phrase, answer(op, {**inputs, "x": stored(wide)}, rest)


_BORDERS = {
    "edge": "the border repeats the outermost pixels: padding is not zeros",
    "reflect": "the border mirrors the picture: padding is not zeros",
    "symmetric": "the border mirrors the picture with its outermost pixels: padding is not zeros",
    "wrap": "the border is the picture's other side: padding is circular, not zeros",
}


def _next_rows(x: np.ndarray, left: int, right: int) -> np.ndarray:
    N, C, H, W = x.shape
    flat = np.pad(x.reshape(N, C, -1), ((0, 0), (0, 0), (left, right)))
    rows = [flat[..., W * r : W * r + W + left + right] for r in range(H)]
    return np.ascontiguousarray(np.stack(rows, axis=2))


# --- norms -------------------------------------------------------------------------------------------------------

# x is [rows, n]; each row is normalised.


def _mean(x, own):
    return x.mean(axis=1, keepdims=True) if own else np.zeros((len(x), 1))


def _padded(length: Callable[[int], int]) -> Step:
    """Return a variance that includes (0 - mean)^2 of the zeros that pad a row to this length."""

    def variance(x, m):
        more = length(x.shape[1]) - x.shape[1]
        return (((x - m) ** 2).sum(1, keepdims=True) + more * m**2) / x.shape[1]

    return variance


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


_MEANS: dict[str, Step] = {
    "the mean of the first row is used for all": lambda x, own: np.broadcast_to(_mean(x, own)[:1], (len(x), 1)),
    "the mean of the row before is used": lambda x, own: np.roll(_mean(x, own), 1, 0),
    "the mean is not subtracted": lambda x, own: _mean(x, False),
    "the mean is subtracted": lambda x, own: _mean(x, True),
    "the mean is the sum over a power of two": lambda x, own: (
        _mean(x, own) * x.shape[1] / _power_of_two(x.shape[1])
    ),
    "the mean of all rows is used": lambda x, own: np.full((len(x), 1), x.mean() if own else 0.0),
}


def _variance(x, m):
    return ((x - m) ** 2).mean(axis=1, keepdims=True)


_VARIANCES: dict[str, Step] = {
    "the variance of the first row is used for all": lambda x, m: np.broadcast_to(_variance(x, m)[:1], (len(x), 1)),
    "the variance of the row before is used": lambda x, m: np.roll(_variance(x, m), 1, 0),
    "the mean of squares, without the mean subtracted": lambda x, m: (x * x).mean(1, keepdims=True),
    "the variance is divided by n - 1": lambda x, m: _variance(x, m) * x.shape[1] / (x.shape[1] - 1),
    "the sum of squares, not divided by n": lambda x, m: _variance(x, m) * x.shape[1],
    "the variance is divided by a power of two": lambda x, m: (
        _variance(x, m) * x.shape[1] / _power_of_two(x.shape[1])
    ),
    "zeros that fill a row up to a power of two count in the variance": _padded(_power_of_two),
    **{
        f"zeros that fill a row up to whole {b}s count in the variance": _padded(lambda n, b=b: -(-n // b) * b)
        for b in (8, 16, 32, 64, 128, 256, 512)
    },
    "the variance of all rows is used": lambda x, m: np.full((len(x), 1), _variance(x, m).mean()),
    "the variance is rounded to float16": lambda x, m: _variance(x, m).astype(np.float16).astype(np.float64),
    "the variance is rounded to bfloat16": lambda x, m: (
        _variance(x, m).astype(ml_dtypes.bfloat16).astype(np.float64)
    ),
    "the mean of |x - mean| for the root of the mean of squares": lambda x, m: (
        np.abs(x - m).mean(1, keepdims=True) ** 2
    ),
}

# variance, eps -> the divisor. Norms add eps inside the root; l2_norm takes the larger of root and eps.
_DIVISORS: dict[str, Step] = {
    "eps is added outside the root": lambda v, eps: np.sqrt(v) + eps,
    "eps is added inside the root": lambda v, eps: np.sqrt(v + eps),
    "eps is squared and added inside the root": lambda v, eps: np.sqrt(v + eps * eps),
    "the larger of the square and eps, inside the root": lambda v, eps: np.sqrt(np.maximum(v, eps)),
    "the larger of the root and eps": lambda v, eps: np.maximum(np.sqrt(v), eps),
    "eps is left out": lambda v, eps: np.sqrt(v),
    "the variance for its root": lambda v, eps: v + eps,
    "the variance squared, not its root": lambda v, eps: (v + eps) ** 2,
    "the result is not divided": lambda v, eps: np.ones_like(v),
}


def _ends(n: int) -> Iterator[tuple[str, np.ndarray]]:
    for block in (4, 8, 16, 32):
        if n % block and n > block:
            yield f"the last {n % block}, behind whole {block}s", np.arange(n) >= n // block * block


def _norms(name: str, values: dict[str, np.ndarray], params: Params) -> Named:
    x = values["x"]
    groups = name.startswith("group_norm")
    rows = x.reshape(len(x) * params["num_groups"], -1) if groups else x.reshape(-1, x.shape[-1])
    own, eps = name not in ("rms_norm", "l2_norm"), params["eps"]
    length = rows.shape[1] if name == "l2_norm" else 1

    def divisor(v, eps):
        return np.maximum(np.sqrt(v), eps) if name == "l2_norm" else np.sqrt(v + eps)

    def made(mean=_mean, variance=_variance, divide=divisor, centre=None, affine=_affine):
        m = mean(rows, own)
        c = rows - m
        if centre is not None:
            c = centre(rows, m)
        y = c / divide(length * variance(rows, _mean(rows, own) if mean is _mean else m), eps)
        return affine(name, y.reshape(x.shape), values)

    for label, step in _MEANS.items():
        yield label, made(mean=step)
        # As one pass computes both, the variance has the wrong mean, too.
    for label, step in _VARIANCES.items():
        yield label, made(variance=step)
    for (a, mean), (b, variance) in zip(list(_MEANS.items())[:2], list(_VARIANCES.items())[:2], strict=True):
        yield f"{a}, and {b}", made(mean=mean, variance=lambda r, m, v=variance: v(r, _mean(r, own)))
    yield (
        "mean and variance are taken over everything",
        made(
            mean=lambda r, own: np.full((len(r), 1), r.mean() if own else 0.0),
            variance=lambda r, m: np.full((len(r), 1), np.mean((r - (r.mean() if own else 0.0)) ** 2)),
        ),
    )
    yield (
        "mean and variance of the first item are used for all",
        made(
            mean=lambda r, own: _of_first_item(_mean(r, own), len(x)),
            variance=lambda r, m: _of_first_item(_variance(r, _mean(r, own)), len(x)),
        ),
    )
    if len(x) > 1:
        yield (
            "mean and variance are taken over all items of the batch",
            made(
                mean=lambda r, own: _over_items(_mean(r, own), len(x)),
                variance=lambda r, m: _over_items(_variance(r, _over_items(_mean(r, own), len(x))), len(x)),
            ),
        )
    for n in (n for n in (16, 32, 64, 128, 256, 512, 1024, 2048) if n < rows.shape[1]):
        yield (
            f"mean and variance are those of the first {n} of each row",
            made(
                mean=lambda r, own, n=n: _mean(r[:, :n], own),
                variance=lambda r, m, n=n: _variance(r[:, :n], _mean(r[:, :n], own)),
            ),
        )
    for axes, label in _OTHER_ROWS.items() if not groups and x.ndim > 2 else ():
        if x.ndim >= 2 - min(axes) and any(x.shape[a] > 1 for a in axes):
            yield (
                f"normalised over {label}",
                made(
                    mean=lambda r, own, a=axes: _over_axes(r, x.shape, a) if own else _mean(r, own),
                    variance=lambda r, m, a=axes: _over_axes(
                        (r - (_over_axes(r, x.shape, a) if own else 0)) ** 2, x.shape, a
                    ),
                ),
            )
    for label, step in _DIVISORS.items():
        yield label, made(divide=step)
    for dtype, label in ((np.float16, "float16"), (ml_dtypes.bfloat16, "bfloat16")):
        yield (
            f"1 over the root is rounded to {label}",
            made(divide=lambda v, eps, t=dtype: 1 / (1 / divisor(v, eps)).astype(t).astype(np.float64)),
        )
    for label, tail in _ends(rows.shape[1]):
        yield f"the mean is not subtracted of {label}", made(centre=lambda r, m, t=tail: np.where(t, r, r - m))
        yield f"{label}, left out of the variance", made(variance=_over(~tail))
        yield (
            f"{label}, left out of the mean",
            made(mean=lambda r, own, t=tail: _kept(r, ~t) if own else _mean(r, own)),
        )
    for label, affine in _AFFINES.items():
        if "weight" in values:
            yield label, made(affine=affine)


# Axes to normalise over in place of the last; of queries and keys [B, L, H, D] the last but one are the heads.
_OTHER_ROWS = {
    (-2, -1): "the last two axes: over all heads together",
    (-2,): "the last axis but one",
    (-3, -1): "the last axis and the one before the heads",
}


def _over_axes(rows: np.ndarray, shape: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
    """Return the mean over these axes of x, of this shape, in the form of its rows [rows, n]."""
    mean = rows.reshape(shape).mean(axis=axes, keepdims=True)
    return np.broadcast_to(mean, shape).reshape(rows.shape)


def _of_first_item(rows: np.ndarray, items: int) -> np.ndarray:
    first = rows[: len(rows) // items]
    return np.tile(first, (items, 1))


def _over_items(rows: np.ndarray, items: int) -> np.ndarray:
    """Return the mean over the items of what each row of an item has, for the rows of all."""
    return np.tile(rows.reshape(items, -1, 1).mean(axis=0), (items, 1))


def _over(kept: np.ndarray) -> Step:
    return lambda x, m: (((x - m) ** 2) * kept).sum(1, keepdims=True) / x.shape[1]


def _kept(x: np.ndarray, kept: np.ndarray) -> np.ndarray:
    return (x * kept).sum(1, keepdims=True) / x.shape[1]


def _affine(name, y, values, weight=lambda w: w, bias_first=False, with_bias=True):
    def shaped(t):
        return t.reshape(-1, *(1,) * (y.ndim - 2)) if name.startswith("group_norm") else t

    if name == "adaptive_layer_norm":
        return y * (1 + values["scale"][:, None]) + values["shift"][:, None]
    w = shaped(weight(values["weight"])) if "weight" in values else 1.0
    b = shaped(values["bias"]) if "bias" in values and with_bias else 0.0
    y = (y + b) * w if bias_first else y * w + b
    return y / (1 + np.exp(-y)) if name.endswith("silu") else y


_AFFINES: dict[str, Any] = {
    "the weight counts as 1 + weight": lambda *a: _affine(*a, weight=lambda w: 1 + w),
    "1 is taken from the weight": lambda *a: _affine(*a, weight=lambda w: w - 1),
    "divided by the weight": lambda *a: _affine(*a, weight=lambda w: 1 / w),
    "the bias is added before the weight": lambda *a: _affine(*a, bias_first=True),
}


# --- attention ---------------------------------------------------------------------------------------------------


def _softmax(s, axis=-1):
    top = s.max(axis, keepdims=True)
    p = np.exp(s - np.where(np.isneginf(top), 0.0, top))
    total = p.sum(axis, keepdims=True)
    return p / np.where(total == 0, 1.0, total)


def _base_two(s):
    return _softmax(s * np.log(2.0))


def _unnormalised(s):
    top = s.max(-1, keepdims=True)
    return np.exp(s - np.where(np.isneginf(top), 0.0, top))


def _sums_in(dtype) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return a function that computes q . k, adding the products one by one in a small type."""

    def scores(q, k):
        q, k = (t.astype(dtype) for t in (q, k))
        s = np.zeros((*q.shape[:3], k.shape[2]), dtype)
        for d in range(q.shape[3]):
            s = s + q[..., :, None, d] * k[..., None, :, d]
        return s.astype(np.float64)

    return scores


def _sigmoid(s):
    return 1 / (1 + np.exp(-s))


_SOFTMAXES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "softmax over the queries, not over the keys": lambda s: _softmax(s, 2),
    "softmax over the heads, not over the keys": lambda s: _softmax(s, 1),
    "softmax in powers of 2, not of e": _base_two,
    "softmax not divided by its sum": _unnormalised,
    "no softmax": lambda s: np.where(np.isneginf(s), 0.0, s),
    "sigmoid in place of softmax": _sigmoid,
    "softmax one step behind: 1 is added to its sum": lambda s: (lambda e: e / (1 + e.sum(-1, keepdims=True)))(
        np.exp(s)
    ),
    "weights rounded to float16 before the values": lambda s: rounded(np.float16)(_softmax(s)),
    "weights rounded to bfloat16 before the values": lambda s: rounded(ml_dtypes.bfloat16)(_softmax(s)),
    "scores rounded to float16": lambda s: _softmax(rounded(np.float16)(s)),
    "scores rounded to bfloat16": lambda s: _softmax(rounded(ml_dtypes.bfloat16)(s)),
}


# What a query that sees no key has: whether its scores count, and the keys that it sees.
_OF_NO_KEY: dict[str, Callable[[np.ndarray, int], tuple[bool, np.ndarray]]] = {
    "a query that sees no key sees all": lambda j, J: (True, j >= 0),
    "a query that sees no key weighs all alike": lambda j, J: (False, j >= 0),
    "a query that sees no key sees the first": lambda j, J: (False, j == 0),
    "a query that sees no key sees the last": lambda j, J: (False, j == J - 1),
}


def _attention(name: str, values: dict[str, np.ndarray], params: Params) -> Named:
    q, k, v = (values[n].transpose(0, 2, 1, 3) for n in ("q", "k", "v"))
    if "sinks" in values:
        return
    ratio = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, ratio, 1), np.repeat(v, ratio, 1)
    scale = params["scale"] or q.shape[-1] ** -0.5
    mask = np.asarray(values.get("mask", np.zeros(1)))
    hidden = np.zeros((1, 1, q.shape[2], k.shape[2]), bool)
    if params["causal"]:
        i, j = np.arange(q.shape[2])[:, None], np.arange(k.shape[2])
        hidden[:] = j > i + params["diagonal"]
    causal = np.where(hidden, -np.inf, 0.0)

    def made(scores=lambda q, k: q @ k.swapaxes(-1, -2), softmax=_softmax, masked=None):
        s = scores(q, k)
        s = (scale * s + mask + causal) if masked is None else masked(s)
        return (softmax(s) @ v).transpose(0, 2, 1, 3)

    for label, softmax in _SOFTMAXES.items():
        yield label, made(softmax=softmax)
    none = np.isneginf(mask + causal).all(-1, keepdims=True)
    for label, shown in _OF_NO_KEY.items() if none.any() else ():
        scored, open_to = shown(np.arange(k.shape[2]), k.shape[2])
        instead = np.where(none, np.where(open_to, 0.0, -np.inf), mask + causal)
        yield label, made(masked=lambda s, m=instead, e=scored: np.where(none & ~e, 0.0, scale * s) + m)
    yield "products of queries and keys added up in float16", made(scores=_sums_in(np.float16))
    yield (
        "products of queries and keys rounded to float16",
        made(scores=lambda q, k: rounded(np.float16)(q @ k.swapaxes(-1, -2))),
    )
    yield (
        "products of queries and keys rounded to bfloat16",
        made(scores=lambda q, k: rounded(ml_dtypes.bfloat16)(q @ k.swapaxes(-1, -2))),
    )
    if "mask" in values:
        finite = np.where(np.isneginf(mask), -1e30, mask)
        yield "the mask is scaled, too", made(masked=lambda s: scale * (s + finite) + causal)
        yield (
            "the mask is subtracted",
            made(masked=lambda s: scale * s - np.where(np.isneginf(mask), 0.0, mask) + causal),
        )
        yield "the mask is added twice", made(masked=lambda s: scale * s + 2 * finite + causal)
        yield (
            "the mask hides what it should show",
            made(masked=lambda s: scale * s + np.where(np.isneginf(mask), 0.0, -np.inf) + causal),
        )
        yield "the first item's mask is used for all", made(masked=lambda s: scale * s + mask[:1] + causal)
        yield (
            "the first head's mask is used for all",
            made(masked=lambda s: scale * s + (mask[:, :1] if mask.ndim == 4 else mask) + causal),
        )
    if not params["causal"] and q.shape[2] == k.shape[2]:
        later = np.where(np.arange(k.shape[2]) > np.arange(q.shape[2])[:, None], -np.inf, 0.0)
        yield "later keys are hidden, as of a decoder", made(masked=lambda s: scale * s + mask + later)


_NORM_NAMES = ("group_norm", "group_norm_silu", "layer_norm", "adaptive_layer_norm", "rms_norm", "l2_norm")
_FAMILIES: dict[str, Callable[[str, dict[str, np.ndarray], Params], Named]] = {
    **dict.fromkeys(_NORM_NAMES, _norms),
    "attention": _attention,
    "linear": linear_steps,
    "rope": rope_steps,
    **dict.fromkeys(NAMES, other_functions),
}
