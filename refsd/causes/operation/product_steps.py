"""RoPE computed step by step, with one step at a time changed (see steps.py), or at other positions."""

from collections.abc import Callable, Iterator
from itertools import product

import ml_dtypes
import numpy as np

from refsd.causes.generic.error_places import joined
from refsd.golden.mutations import answer
from refsd.golden.operation import Inputs, Operation, Params
from refsd.numerics.tensor import stored

Named = Iterator[tuple[str, np.ndarray]]
_TOKENS, _TOLD = 256, 6
# Numbers of a table of cosines and sines, at the most.
_TABLE = 1 << 20
# Positions beyond the right ones that are tried, the widest range of them; a token's share of the largest number.
_FAR, _RANGE, _SAME = 64, 1024, 1e-3


Exponent = Callable[[np.ndarray, float], np.ndarray]
# Of the i-th of d / 2 frequencies; right is 2 i / d.
EXPONENTS: dict[str, Exponent] = {
    "2 i / (d - 2)": lambda i, d: 2 * i / max(d - 2, 1),
    "2 i / (d + 2)": lambda i, d: 2 * i / (d + 2),
    "(2 i + 1) / d": lambda i, d: (2 * i + 1) / d,
    "(2 i + 2) / d": lambda i, d: (2 * i + 2) / d,
    "i / d": lambda i, d: i / d,
    "4 i / d": lambda i, d: 4 * i / d,
}


def times_steps(name: str, values: dict[str, np.ndarray], params: Params) -> Named:
    """Yield the embeddings of times with other frequencies."""
    half, times = params["dim"] // 2, params["scale"] * values["t"]

    def made(t=times, exponent=lambda i, d: 2 * i / d):
        f = params["max_period"] ** -exponent(np.arange(half), 2 * (half - params["freq_shift"]))
        angle = t[:, None] * f
        y = np.concatenate([of(angle) for of in (np.cos, np.sin)[:: -1 if params["sin_first"] else 1]], axis=-1)
        return np.pad(y, ((0, 0), (0, params["dim"] % 2)))

    for words, exponent in EXPONENTS.items():
        yield f"frequencies are max_period^-({words})", made(exponent=exponent)
    for dtype in (ml_dtypes.bfloat16, np.float16):
        coarse, called = rounded(dtype), np.dtype(dtype).name
        yield f"times of 0..1000 are rounded to {called}", made(coarse(times))
        for words, t in (("", times), (", as they are before", coarse(times))):
            there, words = 1000 * coarse(t / 1000), f"times, divided by 1000, are rounded to {called}{words}"
            yield from ((words, made(there)), (f"{words}, and as they are behind", made(coarse(there))))


def rounded(dtype) -> Callable[[np.ndarray], np.ndarray]:
    return lambda t: t.astype(dtype).astype(np.float64)


def rope_steps(name: str, values: dict[str, np.ndarray], params: Params) -> Named:
    x, ids, halves = values["x"], values["ids"], params["halves"]
    angle = _angles(ids, params)
    n = 2 * angle.shape[-1]
    turned, rest = x[..., :n], x[..., n:]

    def by(cos, sin, halves=halves, turned=turned, rest=rest):
        if halves:
            one, two = np.split(turned, 2, axis=-1)
        else:
            one, two = turned[..., ::2], turned[..., 1::2]
        y = one * cos - two * sin, one * sin + two * cos
        y = np.concatenate(y, axis=-1) if halves else np.stack(y, axis=-1).reshape(turned.shape)
        return np.concatenate([y, rest], axis=-1)

    def full(angle, halves=halves):
        """Rotate with an angle for every channel, given each channel's partner."""
        one, two = np.split(turned, 2, axis=-1)
        pairs = np.stack([-turned[..., 1::2], turned[..., ::2]], axis=-1).reshape(turned.shape)
        partner = np.concatenate([-two, one], axis=-1) if halves else pairs
        return np.concatenate([turned * np.cos(angle) + partner * np.sin(angle), rest], axis=-1)

    cos, sin = np.cos(angle), np.sin(angle)
    yield "turned the other way: the sine has the other sign", by(cos, -sin)
    yield "angles in pairs (each twice), channels in halves", full(np.repeat(angle, 2, -1), True)
    yield "angles in halves (all, then all), channels in pairs", full(np.tile(angle, 2), False)
    for factor in (1 / 16, 1 / 8, 1 / 4, 1 / 2, 2, 4, 8, 16):
        yield f"positions are multiplied by {factor:g}", by(*_of(factor * angle))
    for more, words in ((1, "one more"), (-1, "one less"), (0.5, "a half more"), (-0.5, "a half less")):
        yield f"positions are {words}", by(*_of(_angles(ids + more, params)))
    for words, exponent in EXPONENTS.items():
        yield f"frequencies are theta^-({words})", by(*_of(_angles(ids, params, exponent)))
    whole = x.shape[-1] if len(params["axes_dim"]) == 1 else sum(params["axes_dim"])
    each = _angles(ids, params, lambda i, d: 2 * i / whole)
    yield f"frequencies are theta^-(2 i / {whole}) on each axis", by(*_of(each))
    for dtype in (np.float16, ml_dtypes.bfloat16):
        coarse, called = rounded(dtype), np.dtype(dtype).name
        parts = [
            coarse(ids[..., axis, None]) * coarse(params["theta"] ** (-np.arange(0, dim, 2) / dim))
            for axis, dim in enumerate(params["axes_dim"])
        ]
        rough = np.concatenate(parts, axis=-1)[:, :, None]
        yield f"positions, frequencies and angles rounded to {called}", by(*_of(coarse(rough)))
        yield f"positions and frequencies rounded to {called}", by(*_of(rough))
    own = tuple(params["axes_dim"])
    for axis in range(len(own)) if rest.shape[-1] else ():
        whole = tuple(dim + rest.shape[-1] * (a == axis) for a, dim in enumerate(own))
        wide = _of(_angles(ids, {**params, "axes_dim": whole}))
        words = f"the whole head is turned, not its first {n} channels: axes_dim is {whole}, not {own}"
        yield words, by(*wide, turned=x, rest=x[..., :0])
    at = np.abs(ids[..., :1]).astype(int)
    for row, width in product((n // 2, n, 2 * n, x.shape[-1]), {n // 4, n // 2, x.shape[-1] // 2}):
        if len(own) == 1 and (row, width) != (n, n // 2) and (at == ids).all() and at.max() * row < _TABLE:
            positions = np.arange((at.max() * row + 2 * width) // n + 1)
            table = np.concatenate(_of(_angles(positions[:, None, None], params)), -1).ravel()
            read = [table[at * row + np.arange(width) + more][:, :, None] for more in (0, width)]
            words = f"rows of {row} numbers, {width} of both, not {n} and {n // 2}"
            again = by(*read, turned=x[..., : 2 * width], rest=x[..., 2 * width :])
            yield f"a table of cosines and sines is read as {words}", again


def _angles(ids: np.ndarray, params: Params, exponent: Exponent = lambda i, d: 2 * i / d) -> np.ndarray:
    parts = [
        ids[..., axis, None] * params["theta"] ** -exponent(np.arange(dim // 2), dim)
        for axis, dim in enumerate(params["axes_dim"])
    ]
    return np.concatenate(parts, axis=-1)[:, :, None]


def _of(angle):
    return np.cos(angle), np.sin(angle)


def other_tokens(
    op: Operation, inputs: Inputs, params: Params, actual: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield RoPE with each token at the position that its answer has, along each axis of the ids."""
    if op.name != "rope" or not 1 < inputs["ids"].shape[1] <= _TOKENS or np.ptp(inputs["ids"].values()) > _RANGE:
        return
    ids, least = inputs["ids"].values(), _SAME * np.abs(actual).max()
    told, solved = dict[str, list[str]](), ids.copy()

    def at(axis: int, positions: np.ndarray | int) -> np.ndarray:
        moved = solved.copy()
        moved[..., axis] = positions
        return answer(op, {**inputs, "ids": stored(moved)}, params)

    for axis in range(ids.shape[-1]):
        own = ids[..., axis]
        channels = (at(axis, own + 1) != at(axis, own)).any(axis=(0, 1, 2))
        tried = np.arange(own.min() - _FAR, own.max() + _FAR + 1)
        far = np.stack([np.abs(at(axis, p) - actual)[..., channels].max(axis=(2, 3), initial=0) for p in tried])
        far = far if len(own) > 1 else far.max(axis=1, keepdims=True)  # all items have the same positions
        right = np.take_along_axis(far, (own - tried[0])[None], axis=0)[0] <= least
        if (far.min(axis=0) > least).any():
            return
        best = np.where(right, own, tried[far.argmin(axis=0)])
        solved[..., axis] = best
        for item in np.flatnonzero(~right.all(axis=1)):
            some = np.flatnonzero(~right[item])
            now, before = best[item, some], own[item, some]
            by = now - before
            if np.ptp(by) == 0 and np.ptp(now):
                what = f"{abs(by[0])} {'more' if by[0] > 0 else 'less'}"
            else:
                what = ", not ".join(", ".join(map(str, dict.fromkeys(some))) for some in (now, before))
            where = f"tokens {some[0]} to {some[-1]}"
            told.setdefault(f"the positions' axis {axis} is {what}, at {where}", []).append(str(item))
    if told:
        texts = [f"{words} of item{'s' * (len(items) > 1)} {joined(items, 'and')}" for words, items in told.items()]
        yield "; ".join(texts[:_TOLD]), answer(op, {**inputs, "ids": stored(solved)}, params)
