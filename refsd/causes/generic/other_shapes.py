"""Describe an answer of another shape whose slices are the right answer's: some left out, some repeated."""

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

_NEAR = 2.0**-12
_MOST = 1 << 24


def other_shapes(actual: Mapping[str, np.ndarray], truth: Mapping[str, np.ndarray]) -> list[str]:
    """Return a phrase for each such output: "out: of axis 1, 77 long, the first 76 alone are there"."""
    phrases = {name: other_shape(actual[name], y) for name, y in truth.items() if name in actual}
    return [f"{name}: {phrase}" for name, phrase in phrases.items() if phrase]


def other_shape(actual: np.ndarray, truth: np.ndarray) -> str:
    """Return which slices are missing or too many; "" if the shape is right, or the numbers are others."""
    if actual.ndim != truth.ndim or actual.shape == truth.shape or not actual.size or actual.size > _MOST:
        return ""
    if not truth.size or not np.ptp(truth):  # every slice is like every other
        return ""
    limit = _NEAR * float(np.sqrt(np.mean(np.square(truth, dtype=np.float64))))
    axes = [a for a in range(truth.ndim) if actual.shape[a] != truth.shape[a]]
    for chosen in itertools.product(*(_slices(truth.shape[a], actual.shape[a]) for a in axes)):
        y = truth
        for axis, (_, read) in zip(axes, chosen, strict=True):
            y = y.take(read, axis)
        fits = np.abs(y - actual) <= limit
        for axis, (_, read) in zip(axes, chosen, strict=True):
            fits = fits.take(np.flatnonzero(read >= 0), axis)
        if fits.all():
            named = zip(axes, chosen, strict=True)
            return " and ".join(f"of axis {a}, {truth.shape[a]} long, {words}" for a, (words, _) in named)
    return ""


def _slices(n: int, m: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, index of the right slice at each of m places, -1 where any may stand)."""
    i = np.arange(m)
    if m < n:
        yield f"the first {m} alone are there", i
        yield f"the last {m} alone are there", i + n - m
        if n % m == 0:
            yield f"one in {n // m} is there", i * (n // m)
            yield f"one in {n // m} is there, from the last on", n - 1 - (m - 1 - i) * (n // m)
        return
    yield f"the first stands there {m - n + 1} times", np.maximum(i - (m - n), 0)
    yield f"the last stands there {m - n + 1} times", np.minimum(i, n - 1)
    if m % n == 0:
        yield f"each stands there {m // n} times", i // (m // n)
        yield f"all stand there {m // n} times, one after the other", i % n
    more = "1 more lies" if m == n + 1 else f"{m - n} more lie"
    for where, first in (("behind", 0), ("in front of", m - n)):
        yield f"{more} {where} the right ones", np.where((i >= first) & (i < first + n), i - first, -1)
