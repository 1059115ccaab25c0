"""Norms and attention written a second time, step by step, so that a bug can replace one step at a time.

A declaration says nothing of what happens inside an operation. Here each of these two families has the steps of its
equation; a bug is one step replaced: another mean, another sum of squares, eps elsewhere, a softmax along another
axis, scores rounded early.
"""

from collections.abc import Callable, Iterator
from itertools import product

import ml_dtypes
import numpy as np

from refsd.causes.operation.function_steps import NAMES, other_functions
from refsd.causes.operation.product_steps import rope_steps, rounded, times_steps
from refsd.causes.operation.row_sums import gain_and_shift, norm_rows, whole_attention
from refsd.golden.mutations import answer
from refsd.golden.operation import Inputs, Operation, Params
from refsd.golden.wording import counted
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
    padding = params.get("padding") if op.name != "pad" else None
    if x.ndim < 4 or not isinstance(padding, tuple) or len(padding) != 2 * (x.ndim - 2) or not any(padding):
        return
    n = len(padding)
    chosen = {"": range(n)} | ({", along axes [2]": range(2), f", along axes {[*range(3, x.ndim)]}": range(2, n)})
    ends = [f", {end} axis {a} alone" for a in range(2, x.ndim) for end in ("before", "behind")]
    for where, own in {**chosen, **{words: (i,) for i, words in enumerate(ends)}}.items():
        sides = [p if i in own else 0 for i, p in enumerate(padding)]
        left = tuple(p - side for p, side in zip(padding, sides, strict=True))
        for mode, phrase in _BORDERS.items() if any(sides) else ():
            if mode == "edge" or max(sides) < min(x.shape[2:]):
                pairs = [(0, 0), (0, 0), *zip(sides[::2], sides[1::2], strict=True)]
                wide = np.ascontiguousarray(np.pad(x, pairs, mode))  # type: ignore[call-overload]
                yield phrase + where, answer(op, {**inputs, "x": stored(wide)}, {**params, "padding": left})
    for chosen, words, wide in _neighbours(x, *padding[-4:]) if any(padding[-4:]) else ():
        y = answer(op, {**inputs, "x": stored(wide)}, {**params, "padding": (*padding[:-4], 0, 0, 0, 0)})
        text = f"no border {chosen}: the rows before and behind are read there, as neighbouring memory"
        yield f"{text}{words}", y


_BORDERS = {
    "edge": "the border repeats the outermost pixels: padding is not zeros",
    "reflect": "the border mirrors the picture: padding is not zeros",
    "symmetric": "the border mirrors the picture with its outermost pixels: padding is not zeros",
    "wrap": "the border is the picture's other side: padding is circular, not zeros",
}


# Sides on which an engine may not see that a picture ends, as slices of a padded one that are zeros then.
_OPEN = {
    "left and right": "tb",
    "at the left": "tbr",
    "at the right": "tbl",
    "above": "blr",
    "below": "tlr",
    "at all": "",
}


def _neighbours(x: np.ndarray, *sides: int) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield (open sides, words, padded x) where memory beside the picture is read on some sides, zeros on others.

    Of a plane alone, of all items with channels last, of all planes. sides: pixels above, below, left and right
    """
    (top, bottom, left, right), (H, W), (N, C) = sides, x.shape[-2:], x.shape[:2]
    i, j = np.arange(-top, H + bottom)[:, None], np.arange(-left, W + right)
    at, beyond = i * W + j, {"t": i < 0, "b": i >= H, "l": j < 0, "r": j >= W}
    for words, axes, lie in ("", (0, 1), N * C), (", channels last", (1, 0), C), (", all planes", (0, 1), 1):
        planes = np.moveaxis(x, (0, 1), axes)
        flat = np.pad(planes.reshape(lie, -1), ((0, 0), (-at.min(), at.max())))
        first = np.arange(x.size // lie // (H * W))[:, None, None] * H * W
        read = np.moveaxis(flat[:, first + at - at.min()].reshape(*planes.shape[:-2], *at.shape), axes, (0, 1))
        for chosen, zeros in _OPEN.items():
            yield chosen, words, np.ascontiguousarray(np.where(sum(beyond[side] for side in zeros), 0, read))


# --- norms -------------------------------------------------------------------------------------------------------


def _norms(name: str, values: dict[str, np.ndarray], params: Params) -> Named:
    """Yield what no row's statistics tell (row_sums.py): zeros that count, and eps elsewhere."""
    x = values["x"]
    rows = norm_rows(name, x, params)
    own, eps, n = name not in ("rms_norm", "l2_norm"), params["eps"], rows.shape[1]
    mean = rows.mean(1, keepdims=True) if own else np.zeros((len(rows), 1))
    square = ((rows - mean) ** 2).sum(1, keepdims=True)

    def made(variance=square / n, centre=mean, divisor=None, scaled=affine):
        v = variance * n if name == "l2_norm" else variance
        d = divisor(v) if divisor else np.maximum(np.sqrt(v), eps) if name == "l2_norm" else np.sqrt(v + eps)
        return scaled(name, ((rows - centre) / d).reshape(x.shape), values)

    power = 1 << (n - 1).bit_length()
    yield "the mean is not taken off", made(centre=0 * mean)
    yield "no mean is subtracted, as in RMSNorm", made(square / n + mean**2, 0 * mean)
    yield "the variance is divided by n - 1", made(square / (n - 1))
    lengths = {power: "a power of two"} | {-(-n // b) * b: f"whole {b}s" for b in _BLOCKS}
    for length, words in lengths.items():
        if length > n:
            padded = (square + (length - n) * mean**2) / n
            yield f"zeros that fill a row up to {words} count in the variance", made(padded)
            yield f"the variance is divided by {words}", made(square / length)
    late = np.concatenate([square[:1], square[:-1]]) / n
    yield f"the {'variance' if own else 'mean of squares'} is the row before's", made(late)
    if own:
        yield "the variance is taken about 0: the mean of x^2", made(square / n + mean**2)
    whole = x.shape[1] // params["num_groups"] if name.startswith("group_norm") else 1
    # Where channels are whole, that is another number of groups.
    for parts in (k for k in (2, 4, 8) if n % k == 0 and n > k and whole % k):
        part = rows.reshape(len(rows), parts, -1)
        centre = part.mean(2, keepdims=True) * own
        about = ((part - centre) ** 2).sum(2) / (n if name == "l2_norm" else n // parts)
        each = (np.repeat(t, n // parts, axis=1) for t in (about, centre[..., 0]))
        words = f"mean and variance are those of each {n // parts} of {n}, as {parts} devices share a row"
        yield words, made(*each)
    for label, divisor in _DIVISORS.items():
        yield label, made(divisor=lambda v, of=divisor: of(v, eps))
    for dtype in (np.float16, ml_dtypes.bfloat16):
        coarse, called = rounded(dtype), np.dtype(dtype).name
        yield f"normalised numbers rounded to {called}", made(scaled=lambda n, y, v, of=coarse: affine(n, of(y), v))
    if "weight" in values:
        yield "weight and bias are left out", made(scaled=lambda name, y, values: y)
        yield "the bias is added before the weight", made(scaled=lambda *a: affine(*a, bias_first=True))
    if name.endswith("silu"):
        gain, shift = gain_and_shift(name, values, x.ndim)
        early = lambda n, y, v: y / (1 + np.exp(-y)) * gain + shift
        yield "SiLU before the weight and the bias", made(scaled=early)


_BLOCKS = (512, 256, 128, 64, 32, 16, 8)
# variance, eps -> the divisor. Norms add eps inside the root; l2_norm takes the larger of root and eps.
_DIVISORS: dict[str, Step] = {
    "eps is added outside the root": lambda v, eps: np.sqrt(v) + eps,
    "eps is added inside the root": lambda v, eps: np.sqrt(v + eps),
    "the larger of the root and eps": lambda v, eps: np.maximum(np.sqrt(v), eps),
}


def affine(name, y, values, bias_first=False):
    gain, shift = gain_and_shift(name, values, y.ndim)
    y = (y + shift) * gain if bias_first else y * gain + shift
    return y / (1 + np.exp(-y)) if name.endswith("silu") else y


# --- attention ---------------------------------------------------------------------------------------------------


def _softmax(s, axis=-1):
    top = s.max(axis, keepdims=True)
    p = np.exp(s - np.where(np.isneginf(top), 0.0, top))
    total = p.sum(axis, keepdims=True)
    return p / np.where(total == 0, 1.0, total)


def _weights(s: np.ndarray, sinks: int = 0) -> Iterator[tuple[str, np.ndarray]]:
    """Yield wrong softmaxes over the last axis: numbers rounded, sums of tiles that are not rescaled.

    sinks: scores in front that belong to the first tile beside its own
    """
    lowest = np.finfo(float).min / 4  # for -inf, whose difference would be no number
    s = np.maximum(s, lowest)
    top = s.max(-1, keepdims=True)
    log = np.where(s > lowest, s - top, -np.inf)
    right, J = np.exp(log), s.shape[-1] - sinks

    def shares(y, by=None):
        return y / np.maximum(y.sum(-1, keepdims=True) if by is None else by, np.finfo(float).tiny)

    total = right.sum(-1, keepdims=True)
    for name, coarse in _COARSE.items():
        e = coarse(right)
        yield f"exponentials rounded to {name}, after they are added up", shares(e, total)
        yield f"probabilities rounded to {name}", coarse(shares(right))
        yield f"exponentials rounded to {name}", shares(e)
    cuts = {f"tiles of {counted(n, 'score')}": n for n in (*_TILES, *_OTHER_TILES) if n < J}
    for tiles, block in (cuts | {f"the {n} parts of a row": -(-J // n) for n in (2, 3, 4, 8) if n < J}).items():
        starts = np.append(0, np.arange(block, J, block) + sinks)
        sizes = np.diff([*starts, s.shape[-1]])
        sums, own = (
            np.repeat(of.reduceat(y, starts, -1), sizes, -1) for of, y in ((np.add, right), (np.maximum, s))
        )
        so_far = np.repeat(np.cumsum(np.add.reduceat(right, starts, axis=-1), axis=-1), sizes, axis=-1)
        yield f"{tiles} are divided by the sum up to their own, not by the whole", shares(right, so_far)
        yield f"{tiles} are averaged, each divided by its own sum", shares(right, sums) / len(starts)
        rise = top - np.maximum.accumulate(own, axis=-1)  # by which the maximum is larger in the end
        for name, coarse in _COARSE.items() if block in _TILES else ():
            e = coarse(np.exp(log + rise)) * np.exp(-rise)
            yield f"exponentials rounded to {name} in {tiles}, after they are added up", shares(e, total)
        yield f"{tiles} are added up as if their maxima were equal", shares(np.exp(log + top - own))
        for rescaled, power in _RESCALED.items():
            wrong = np.exp(log + (1 - power) * rise)
            words = f"{tiles}: a larger maximum {rescaled} what earlier tiles gave"
            yield f"{words} to the sum", shares(right, wrong.sum(-1, keepdims=True))
            yield f"{words} to the values", shares(wrong, total)
            yield words, shares(wrong)


# The power of exp(old maximum - new) with which an engine rescales; right is 1.
_RESCALED = {"does not rescale": 0.0, "rescales twice": 2.0, "rescales the wrong way": -1.0}
_TILES = (8, 16, 32, 64, 128, 256)
_OTHER_TILES = (1, 2, 4, 12, 24, 40, 48, 80, 96, 112, 160, 192, 320, 512)
# What exponentials, from 0 to 1, are rounded to.
_COARSE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    **{name: rounded(name) for name in ("bfloat16", "float16", "float8_e4m3fn")},
    **{f"1/{n}": lambda e, n=n: np.rint(e * n) / n for n in (127, 255, 256)},
}


# What a query that sees no key has: whether its scores count, and the keys that it sees.
_OF_NO_KEY: dict[str, Callable[[np.ndarray, int], tuple[bool, np.ndarray]]] = {
    "a query that sees no key sees all": lambda j, J: (True, j >= 0),
    "a query that sees no key weighs all alike": lambda j, J: (False, j >= 0),
    "a query that sees no key sees the last": lambda j, J: (False, j == J - 1),
}


def _with_sinks(s: np.ndarray, values: dict[str, np.ndarray]) -> np.ndarray:
    """Put each head's sink, if there are any, in front of its scores [B, H, L, J]."""
    if "sinks" not in values:
        return s
    return np.concatenate([np.broadcast_to(values["sinks"][:, None, None], (*s.shape[:-1], 1)), s], axis=-1)


def _softmax_steps(name: str, values: dict[str, np.ndarray], params: Params) -> Named:
    sinks = int("sinks" in values)
    scores = _with_sinks(params["scale"] * values["x"] + values.get("mask", 0.0), values)
    yield from ((label, weights[..., sinks:]) for label, weights in _weights(scores, sinks))


def _attention(name: str, values: dict[str, np.ndarray], params: Params) -> Named:
    whole = whole_attention(values, params)
    q, k, v = (whole[n].transpose(0, 2, 1, 3) for n in "qkv")
    scale, mask, sinks = whole["scale"], whole["mask"], "sinks" in values
    v = np.pad(v, ((0, 0), (0, 0), (int(sinks), 0), (0, 0)))

    def made(softmax=_softmax, masked=lambda s: scale * s + mask):
        s = masked(q @ k.swapaxes(-1, -2))
        return (softmax(_with_sinks(s, values)) @ v).transpose(0, 2, 1, 3)

    for label, axis in (("queries", 2), ("heads", 1)):
        yield f"softmax over the {label}, not over the keys", made(softmax=lambda s, axis=axis: _softmax(s, axis))
    for label, weights in _weights(_with_sinks(scale * (q @ k.swapaxes(-1, -2)) + mask, values), int(sinks)):
        yield label, (weights @ v).transpose(0, 2, 1, 3)
    again = {"log2(e)": np.log2(np.e), "1 / sqrt(D)": q.shape[3] ** -0.5}
    for n, words in product((n for n in _TILES if n < k.shape[2]), again):
        own = scale * again[words] ** (np.arange(k.shape[2]) // n)
        label = f"scores are multiplied by {words} once more at each {n} keys"
        yield label, made(masked=lambda s, t=own: t * s + mask)
    unseen = np.isneginf(mask)
    yield "what is hidden has the score 0", made(masked=lambda s: np.where(unseen, 0.0, scale * s + mask))
    none = np.isneginf(mask).all(-1, keepdims=True)
    for label, shown in _OF_NO_KEY.items() if none.any() else ():
        scored, open_to = shown(np.arange(k.shape[2]), k.shape[2])
        instead = np.where(none, np.where(open_to, 0.0, -np.inf), mask)
        yield label, made(masked=lambda s, m=instead, e=scored: np.where(none & ~e, 0.0, scale * s) + m)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        coarse, called = rounded(dtype), np.dtype(dtype).name
        for times, words in ((scale, ""), (1.0, ", then scaled")):
            early = lambda s, of=coarse, t=times: scale / t * of(t * s) + mask
            yield f"scores rounded to {called}{words}", made(masked=early)
        if np.any(mask[np.isfinite(mask)]):
            yield (
                f"scores rounded to {called} with their mask",
                made(masked=lambda s, of=coarse: of(scale * s + mask)),
            )
    i, j = np.arange(q.shape[2])[:, None] + params["diagonal"], np.arange(k.shape[2])
    for width in (w for n in _TILES for w in (n, n + 1) if w < q.shape[2] + k.shape[2]):
        window = lambda s, w=width: scale * s + mask + np.where(np.abs(i - j) >= w, -np.inf, 0.0)
        yield f"keys {width} and more from the query are hidden: a window", made(masked=window)
    for n in (2, 4, *_TILES) if params["causal"] else ():
        tiled = values.get("mask", 0.0) + np.where(j // n > i // n, -np.inf, 0.0)
        yield f"keys are hidden by whole tiles of {n}", made(masked=lambda s, w=tiled: scale * s + w)
    shared = q.shape[2] if q.shape[2] == k.shape[2] < 129 else 0
    for ranks, first in ((ranks, first) for ranks in (2, 4) for first in range(shared)):
        own = np.concatenate([np.arange(n) * ranks // max(n, 1) for n in (first, q.shape[2] - first)])
        text, ways = np.arange(len(own)) < first, {"alone": (own, own < 0)}
        if first:
            ways |= {
                f"and the first {first}": (own * ~text, text),
                f"and all behind the first {first}": (own * text, ~text),
            }
        cut = f"the first {first} and the others" if first else "all"
        for words, (i, free) in ways.items():
            seen = (i[:, None] == i) | free
            label = f"tokens see their own share {words}, as {ranks} devices cut {cut}"
            yield label, made(masked=lambda s, seen=seen: np.where(seen, scale * s + mask, -np.inf))


_NORM_NAMES = ("group_norm", "group_norm_silu", "layer_norm", "adaptive_layer_norm", "rms_norm", "l2_norm")
_FAMILIES: dict[str, Callable[[str, dict[str, np.ndarray], Params], Named]] = {
    **dict.fromkeys(_NORM_NAMES, _norms),
    "attention": _attention,
    "softmax": _softmax_steps,
    "rope": rope_steps,
    "timestep_embedding": times_steps,
    **dict.fromkeys(NAMES, other_functions),
}
