"""Find over which numbers a norm took its mean and variance: part of its row, another row, other memory.

Also finds a variance to another power, or computed in one pass in float32.

Each row of a wrong answer is a line through its inputs; its slope and intercept give the mean and the deviation
that the engine had. Prefix sums give those of every run of numbers.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import ml_dtypes
import numpy as np

from refsd.causes.generic.error_places import joined
from refsd.causes.generic.orders import rules
from refsd.golden.operation import Inputs, Operation, Params

# With what every phrase begins.
STATISTICS = "mean and variance"
_NAMES = ("layer_norm", "group_norm", "rms_norm", "adaptive_layer_norm")
SOFTMAXES = ("softmax", "attention", "attention_softcap")
_NEAR = 1e-4
_UNIT = 2.0**-24
# How many times the variance E[x^2] must be before one pass loses bits of it.
_CANCELLING = 16.0
ONE_PASS = "variance as E[x^2] - E[x]^2 in float32"
_ROWS = 4
_MOST = 1 << 22
_FITTING, _NAMED = 6, 4
# How sums are taken, beside E[(x - mean)^2].
_ONCE, _MEAN = "as E[x^2] - E[x]^2", "the mean of the run, the variance of all"
_SMALL = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# Rows by which a run of keys is known.
_SHARES = 256
# Pixels that a layout may keep free around a channel.
_MARGINS = (1, 2, 3)
# Rows that threads may add up in one place.
_TOGETHER = (2, 3, 4, 8, 16, 32)
# Numbers, at the least, up to which a row may be read on.
_BEYOND = 1024


class _Run(NamedTuple):
    """Numbers of a row's memory: from first to last; less those from `hole` on, `lost` in number."""

    first: int
    last: int
    hole: int = 0
    lost: int = 0

    @property
    def count(self) -> int:
        return self.last - self.first - self.lost


def row_sums(op: Operation, inputs: Inputs, params: Params, actual: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) of each run of numbers whose mean and variance the answer has."""
    if op.name not in _NAMES or not np.isfinite(actual).all():
        return
    values = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    x = values["x"]
    if x.shape != actual.shape or x.size > _MOST:
        return
    gain, shift = gain_and_shift(op.name, values, x.ndim)
    if not np.all(gain):
        return
    rows = norm_rows(op.name, x, params)
    n, eps, centred = rows.shape[1], params["eps"], op.name != "rms_norm"
    if n < 8 or len(rows) < 2:
        return
    y = ((actual - shift) / gain).reshape(rows.shape)

    def made(mean, variance, seen: np.ndarray | float = 1.0):
        z = (rows - mean[:, None]) / np.sqrt(variance + eps)[:, None] * seen
        return (z.reshape(x.shape) * gain + shift).astype(np.float32)

    for phrase, *known in _hidden(rows, y.reshape(x.shape), 1 if op.name == "group_norm" else -1, centred):
        yield phrase, made(*known)
    lines = _lines(rows, y, centred)
    if lines is None:
        return
    mean, variance = lines[0], lines[1] - eps
    if centred and _is_one_pass(rows, mean, variance, eps):
        yield ONE_PASS, made(mean, variance)
        return
    shape = (len(x), params["num_groups"]) if op.name == "group_norm" else x.shape[:-1]
    others = _other_statistics(rows, shape, mean, variance, eps, centred)
    own = _moments(rows, centred)
    for phrase, (centre, spread) in itertools.chain(others, _of_other_memory(x, rows.shape, centred)):
        if not _near(own, centre, spread) and _near((centre, spread), mean, variance):
            yield phrase, made(centre, spread)
            return
    flat = rows.ravel()
    sums = [np.concatenate([[0.0], np.cumsum(flat**k)]) for k in (1, 2)]
    fits = []
    for run in _runs(n, sums, mean, variance, centred, len(flat)):
        for count, how in _ways(run, n, centred):
            own = _statistics(run, n, np.arange(len(rows)), sums, centred, len(flat), count, how)
            if _near(own, mean, variance):
                phrase = _phrase(run, n) + (f", divided by {n}" if count == n else "")
                if how == _MEAN:
                    phrase = phrase.replace(f"{STATISTICS} are those", "the mean alone is that")
                    phrase = phrase.replace(STATISTICS, "the mean alone")
                fits.append((np.abs(made(*own) - actual).max(), phrase, own))
    for _, phrase, own in sorted(fits, key=lambda fit: fit[0])[:1]:
        yield phrase, made(*own)


def softmax_sums(
    op: Operation, inputs: Inputs, params: Params, actual: np.ndarray, more: bool = False
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) if the softmax's sum lacks a run of keys, or counts it twice; more: has more.

    A row is then the right one over its share of the whole sum, which prefix sums give for every run; what keys
    add that are none is the same for all rows.
    """
    if op.name not in SOFTMAXES or not np.isfinite(actual).all():
        return
    weights, total, right = attention_weights(op, inputs, params)
    sinks = np.exp(inputs["sinks"].values().astype(np.float64)) if "sinks" in inputs else None
    rows, own = (np.asarray(y, np.float64).reshape(-1, y.shape[-1]) for y in (right, actual))
    square = (rows**2).sum(axis=1)
    if weights.shape[-1] < 3 or not (np.isfinite(rows).all() and square.any()):
        return
    seen = square > 0
    factor = (rows * own).sum(axis=1)[seen] / square[seen]
    if (factor == 0).any() or np.abs(own[seen] - factor[:, None] * rows[seen]).max() > _NEAR * np.abs(own).max():
        return
    most, total = int(np.argmin(factor)), np.where(total > 0, total, 1.0)
    if sinks is not None:
        share = np.tile(sinks, len(total) // len(sinks)) / total  # to the sum of the keys
        times = float(((1 / factor - 1) * share[seen]).sum() / (share[seen] ** 2).sum())
        whole = 1 + times * share
        if more and np.abs(whole[seen] * factor - 1).max() < _NEAR:
            words = f"{times:.5g}" if times >= 1 else f"1/{1 / times:.5g}"
            phrase = f"each sink weighs {words} of what it should in the softmax's sum"
            yield phrase, (rows / whole[:, None]).reshape(right.shape).astype(np.float32)
        return
    for words, score in (("0", 0.0), ("-cap", -params.get("cap", 0.0))) if more else ():
        keys = round(float((1 / factor - 1)[most] * total[seen][most] / np.exp(score)))
        whole = 1 + keys * np.exp(score) / total
        if keys > 0 and np.abs(whole[seen] * factor - 1).max() < _NEAR:
            phrase = f"the softmax's sum has {keys} keys more, of score {words} and value 0: padding is not hidden"
            yield phrase, (rows / whole[:, None]).reshape(right.shape).astype(np.float32)
            return
    some = slice(None, None, max(1, len(factor) // _SHARES))
    share, sums = 1 / factor[some], np.cumsum(np.pad(weights[seen][some], ((0, 0), (1, 0))), axis=1)
    if more or np.abs(share - 1).max() < _NEAR:
        return
    for sign, words in ((-1, "lacks"), (1, "counts twice")):
        for first in range(weights.shape[-1]):
            wrong = 1 + sign * (sums[:, first + 1 :] - sums[:, first, None])
            near = np.abs(wrong - share[:, None]).max(axis=0) <= _NEAR * np.abs(share).max()
            if near.any():
                last = first + 1 + int(np.argmax(near))
                whole = 1 + sign * weights[:, first:last].sum(axis=1, keepdims=True)
                keys = f"key {first}" if last == first + 1 else f"keys {first} to {last - 1}"
                y = (rows / np.where(seen[:, None], whole, 1)).reshape(right.shape)
                yield f"the softmax's sum {words} {keys} of {weights.shape[-1]}", y.astype(np.float32)
                return


def norm_rows(name: str, x: np.ndarray, params: Params) -> np.ndarray:
    """Return the numbers of each mean and variance. -> [rows, n]"""
    groups = name.startswith("group_norm")
    return x.reshape(len(x) * params["num_groups"], -1) if groups else x.reshape(-1, x.shape[-1])


def gain_and_shift(name: str, values: dict[str, np.ndarray], ndim: int) -> tuple[np.ndarray, np.ndarray]:
    if name == "adaptive_layer_norm":
        return 1 + values["scale"][:, None], values["shift"][:, None]
    along = (-1, *[1] * (ndim - 2)) if name.startswith("group_norm") else (-1,)
    gain, shift = (values.get(key, np.full(1, own, np.float32)) for key, own in (("weight", 1), ("bias", 0)))
    return gain.reshape(along), shift.reshape(along)


def _lines(rows: np.ndarray, y: np.ndarray, centred: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Return each row's (mean, variance + eps) of y = (x - mean) / root; None if the rows are no lines."""
    m, k = (t.mean(axis=1, keepdims=True) if centred else np.zeros((len(t), 1)) for t in (rows, y))
    square = ((rows - m) ** 2).sum(axis=1, keepdims=True)
    slope = ((rows - m) * (y - k)).sum(axis=1, keepdims=True) / np.where(square, square, 1)
    if not (slope > 0).all():
        return None
    rest = y - k - slope * (rows - m)
    if np.abs(rest).max() > _NEAR * np.abs(y).max():
        return None
    return (m - k / slope)[:, 0], (1 / slope**2)[:, 0]


def _hidden(rows, y, axis: int, centred) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (phrase, means, variances, what is not hidden) where a mask hides slices, in sums, too."""
    last = np.moveaxis(y == 0, axis, -1)
    gone = last.reshape(-1, last.shape[-1]).all(axis=0)
    if not gone.any() or gone.all():
        return
    seen = ~np.moveaxis(np.broadcast_to(gone, last.shape), -1, axis).reshape(rows.shape)
    at = np.flatnonzero(gone)
    runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)[:_NAMED]
    where = joined([f"{i[0]}" + f" to {i[-1]}" * (i.size > 1) for i in runs], "and")
    for count, words in ((rows.shape[1], "all"), (np.maximum(seen.sum(axis=1), 1), "the others")):
        mean = (rows * seen).sum(axis=1) / count * centred
        phrase = f"indices {where} along axis {axis} are hidden, in sums, too, divided by the number of {words}"
        yield phrase, mean, ((rows - mean[:, None]) ** 2 * seen).sum(axis=1) / count, seen


def _is_one_pass(rows: np.ndarray, mean: np.ndarray, variance: np.ndarray, eps: float) -> bool:
    """Return True if the variances are off as E[x^2] - E[x]^2 is in float32, in any order of sums.

    The means are right; the errors of the variances are as large as roundings of E[x^2], far above their own.
    """
    n, right = rows.shape[1], rows.var(axis=1)
    square = (rows**2).mean(axis=1)
    off = np.abs(variance - right)
    same = np.abs(mean - rows.mean(axis=1)) <= _NEAR * np.sqrt(right + eps)
    cancelled = off <= 4 * math.sqrt(n) * _UNIT * square + _NEAR * eps
    large = np.median(off) > 8 * math.sqrt(n) * _UNIT * np.median(right)
    return bool(same.all() and cancelled.all() and large and np.median(square) > _CANCELLING * np.median(right))


def _other_statistics(
    rows, shape, mean, variance, eps, centred
) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    """Yield (phrase, mean and variance of each row): another row's, those of several rows, another power or factor.

    shape: of the rows; mean, variance: those of the engine
    """
    own = _moments(rows, centred)
    for name, dtype in _SMALL.items():
        with np.errstate(over="ignore"):
            small = [t.astype(dtype).astype(np.float64) for t in (*own, 1 / np.sqrt(own[1] + eps))]
        yield f"{STATISTICS if centred else 'mean square'} stored in {name}", (small[0], small[1])
        yield f"1/sqrt(variance + eps) stored in {name}", (own[0], small[2] ** -2 - eps)
    axes = ["all items", "all tokens", "all heads"][: len(shape)] if len(shape) != 2 else ["all items", "axis 1"]
    number = np.arange(len(rows)).reshape(shape)
    for a, name in enumerate(axes):
        read = (number.take([0], a) + 0 * number).ravel()
        yield f"{STATISTICS} are those of the first of {name}", (own[0][read], own[1][read])
    one, two = (t.reshape(shape) for t in (own[0], own[1] + own[0] ** 2))
    for axis, name in [*enumerate(axes), (None, "everything")]:
        means = [(0 * t + t.mean(axis=axis, keepdims=True)).ravel() for t in (one, two)]
        words = f"{STATISTICS if centred else 'mean squares'} are taken over {name}, too"
        yield words, (means[0], means[1] - means[0] ** 2)
    for k in (k for k in _TOGETHER if k <= len(rows)):
        at = np.arange(len(rows)) // k
        sums = [np.bincount(at, t.sum(axis=1))[at] / rows.shape[1] for t in (rows, rows**2)]
        words = f"sums over {k} rows that share a place, divided by the length of one"
        yield f"{STATISTICS} are {words}", (sums[0] * centred, sums[1] - (sums[0] * centred) ** 2)
    for rule, read in rules((len(rows),), len(rows), ["the rows"], {}):
        if (read != number.ravel()).any():
            yield f"{STATISTICS} of a row: {rule}", (own[0][read], own[1][read])
    square = (rows**2).sum(axis=1)
    count = round(float(np.median(square / np.maximum(variance + mean**2, np.finfo(float).tiny))))
    n, centre = rows.shape[1], rows.sum(axis=1) / max(count, 1) * centred
    words = f"those of {count} numbers for {n}: zeros fill up a row"
    words = words if count > n else f"sums over {n} numbers, divided by {count}"
    if count > 0 and (centred or count != n - 1):  # that is a step of norms
        yield f"{STATISTICS} are {words}", (centre, square / count - centre**2)
    share = float(np.median(variance / np.maximum(((rows - mean[:, None]) ** 2).sum(axis=1), np.finfo(float).tiny)))
    centre = rows.sum(axis=1) * share * centred
    words = f"sums multiplied by {share:.6g}, not by 1 / {n} = {1 / n:.6g}"
    yield f"{STATISTICS} are {words}", (centre, ((rows - centre[:, None]) ** 2).sum(axis=1) * share)
    logs = np.log(own[1] + eps), np.log(np.maximum(variance + eps, np.finfo(float).tiny))
    power = float(np.polyfit(*logs, 1)[0]) if np.ptp(logs[0]) > _NEAR else 1.0
    power = round(2 * power) / 2
    yield f"divided by the variance to the power {power / 2:g}, not 0.5", (own[0], (own[1] + eps) ** power - eps)


def _of_other_memory(x, shape, centred) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    """Yield (phrase, mean and variance of each row) of memory in which x lies otherwise than it is read."""
    for where, flat in _memories(x):
        yield f"{STATISTICS} are read from memory {where}", _moments(flat.reshape(shape), centred)


def _memories(x) -> Iterator[tuple[str, np.ndarray]]:
    plain = tuple(range(x.ndim))
    for order in itertools.permutations(plain):
        if order != plain and order[0] == 0:
            yield f"in which the axes lie as {list(order)}", x.transpose(order).ravel()
    for m in _MARGINS if x.ndim == 4 else ():
        around = np.pad(x, ((0, 0), (0, 0), (m, m), (m, m))).ravel()
        yield f"with a margin of {m} around each channel, as if it had none", around[: x.size]


def _moments(rows, centred) -> tuple[np.ndarray, np.ndarray]:
    return rows.mean(1) * centred, rows.var(1) if centred else (rows**2).mean(1)


def _runs(n, sums, mean, variance, centred, size) -> list[_Run]:
    """Return the runs that fit the first rows best: a shorter or longer one, a later one, all but one block."""
    candidates = [_Run(0, b) for b in range(1, max(2 * n, _BEYOND) + 1) if b != n]
    candidates += [_Run(a, n) for a in range(1, n)]
    candidates += [_Run(a, a + n) for a in range(1, n + 1)]
    for block in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        if block < n:
            candidates += [_Run(0, n, hole, block) for hole in range(0, n - block + 1, min(block, 4))]
    some = np.arange(min(_ROWS, len(mean)))
    all_of_them = _Run(*np.array(candidates).T[..., None])
    far = np.full(len(candidates), np.inf)
    for count, how in _ways(all_of_them, n, centred):
        own = np.stack(_statistics(all_of_them, n, some, sums, centred, size, count, how))
        near = _near(own, mean[some], variance[some])
        # In long rows a number more or less is near, too.
        off = np.abs(own - np.stack([mean[some], variance[some]])[:, None]).max(axis=(0, 2))
        far = np.where(near, np.minimum(far, off), far)
    return [candidates[i] for i in np.argsort(far, kind="stable")[:_FITTING] if far[i] < np.inf]


def _ways(run: _Run, n: int, centred: bool) -> Iterator[tuple[int, str]]:
    """Yield by what sums are divided, and how they are taken: in one pass, or the mean's of the run alone."""
    yield from ((run.count, ""), (n, ""), (n, _ONCE))
    if centred:
        yield from ((run.count, _MEAN), (n, _MEAN))


def _statistics(run, n, rows, sums, centred, size, count, how) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of the run in each of these rows. count, how: as in `_ways`

    run: its numbers may be arrays [C, 1], one for each of C runs
    """
    first, last = (np.minimum(rows * n + at, size) for at in (run.first, run.last))
    hole, end = rows * n + run.hole, rows * n + run.hole + run.lost
    one, two = (s[last] - s[first] - (s[end] - s[hole]) for s in sums)
    there = last - first - run.lost
    mean = one / count if centred else np.zeros_like(one)
    if how == _MEAN:
        one, two = (s[rows * n + n] - s[rows * n] for s in sums)
        there = count = n
    return mean, two / count - mean**2 if how == _ONCE else (two - 2 * mean * one + there * mean**2) / count


def _near(own, mean, variance) -> np.ndarray:
    """Return whether means and variances [..., rows] are those of all rows. -> bool [...]"""
    size = np.sqrt(np.abs(variance)) + np.abs(mean)
    near = np.abs(own[0] - mean) <= _NEAR * size
    return (near & (np.abs(own[1] - variance) <= 2 * _NEAR * np.abs(variance))).all(axis=-1)


def _phrase(run: _Run, n: int) -> str:
    if run.lost:
        where = f"numbers {run.hole} to {run.hole + run.lost - 1} of {n}"
        return f"{STATISTICS} lack {where} of each row: a sum of {run.lost} is lost"
    if run.first == 0 and run.last > n:
        return f"{STATISTICS} are read on into the next row, {run.last} numbers for {n}"
    if run.first == 0:
        return f"{STATISTICS} are those of the first {run.last} of {n} of each row"
    if run.last == n:
        return f"{STATISTICS} are those of the last {n - run.first} of {n} of each row"
    return f"{STATISTICS} are those of numbers that begin {run.first} too late, in the next row"


def whole_attention(values: dict[str, np.ndarray], params: Params) -> dict:
    """Return keys and values of every head, the scale and the whole mask."""
    q, k = values["q"], values["k"]
    ratio, scale = q.shape[2] // k.shape[2], params["scale"]
    hidden = np.zeros((q.shape[1], k.shape[1]), bool)
    if params.get("causal"):
        hidden = np.arange(k.shape[1]) > np.arange(q.shape[1])[:, None] + params["diagonal"]
    mask = values.get("mask", np.zeros(1)) + np.where(hidden, -np.inf, 0.0)
    heads = {name: np.repeat(values[name], ratio, axis=2) for name in ("k", "v")}
    return {**heads, "q": q, "scale": q.shape[-1] ** -0.5 if scale is None else scale, "mask": mask}


def attention_weights(op: Operation, inputs: Inputs, params: Params) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the softmax's weights [rows, J], their sums, and what they give [..., n]."""
    values = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    if op.name != "softmax":
        values, cap = whole_attention(values, params), params.get("cap", np.inf)
        scores = values["scale"] * np.einsum("blhd,bjhd->blhj", values["q"], values["k"])
        scores = scores if cap == np.inf else cap * np.tanh(scores / cap)
        shape = (*scores[:, 0].shape[:2], *scores.shape[1::2])
        scores = scores + np.broadcast_to(values["mask"], shape).swapaxes(1, 2)
    else:
        scores = params["scale"] * values["x"] + values.get("mask", 0.0)
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
    total = powers.sum(axis=-1, keepdims=True)
    weights = powers / np.where(total == 0, 1.0, total)
    y = weights if op.name == "softmax" else np.einsum("blhj,bjhe->blhe", weights, values["v"])
    total = total * np.exp(np.clip(top, -700, 700))
    return weights.reshape(-1, weights.shape[-1]), total.reshape(-1), y
