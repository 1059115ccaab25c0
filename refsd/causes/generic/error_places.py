"""Find where an error is (slices of axes, a border, a tail of the flat data) and what the place contains."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from refsd.golden.cause_kinds import BLOCKS
from refsd.golden.evidence import Evidence

# A slice is wrong above this multiple of the honest run's error in its worst slice, and right below half of that.
_WRONG = 4.0
# A slice is also right if the smallest error of the wrong slices is this many times as large.
_APART = 16.0
_BORDER = 3.0
_LISTED = 4
_RIGHT = 8
# Fill patterns of memory that no code has written, as float32.
_FILLS = {
    float(np.frombuffer(bytes.fromhex(pattern), ">f4")[0]): f"0x{pattern}"
    for pattern in ("CDCDCDCD", "DEADBEEF", "AAAAAAAA", "A5A5A5A5", "CCCCCCCC", "BAADF00D", "FEEEFEEE")
}


class Places(NamedTuple):
    """Where an answer is wrong.

    phrases: "the last 5 of 77 along axis 1", one for each axis on which only some indices are wrong; or rest[0]
    box:     the wrong indices of each axis, for numpy.ix_
    rest:    what loops over whole blocks leave, if that is the place, too: "the last 5 of 924 along the flat data"
    mask:    the elements of rest[0] if the phrases are that
    """

    phrases: tuple[str, ...]
    box: tuple[np.ndarray, ...]
    rest: tuple[str, ...] = ()
    mask: np.ndarray | None = None

    @property
    def inside(self) -> tuple[np.ndarray, ...]:
        return np.ix_(*self.box) if self.mask is None else (self.mask,)


def seen(actual: np.ndarray, truth: np.ndarray, honest: np.ndarray) -> Evidence | None:
    """Return the evidence of arrays of any floating type; None if the reference gives no finite numbers."""
    actual, truth, honest = (np.atleast_1d(np.asarray(y, np.float64)) for y in (actual, truth, honest))
    finite = truth.size and (np.isfinite(truth) & np.isfinite(honest)).all()
    return Evidence(actual, truth, honest) if finite else None


def places(evidence: Evidence, channel: int) -> Places:
    """Return the smallest box of slices outside which the error is no larger than an honest run's.

    Where slices of several axes are wrong: what loops over whole blocks of the flat data leave, if it is that.
    """
    phrases, box = [], []
    shape = evidence.truth.shape
    for axis, n in enumerate(shape):
        wrong = _wrong_slices(evidence, axis)
        phrase = None
        if wrong is not None and 0 < wrong.size < n:
            phrase = index_set(wrong, n, axis_name(axis, channel, len(shape)))
        if phrase is None or wrong is None:
            wrong = np.arange(n)
        else:
            phrases.append(phrase)
        box.append(wrong)
    if len(phrases) == len(shape) > 1 and all(wrong.size == 1 for wrong in box):
        phrases = [f"element {[int(wrong[0]) for wrong in box]}"]
    rest, mask = _flat_rest(evidence)
    if rest and len(phrases) != 1:
        return Places(rest[:1], tuple(box), rest, mask)
    rows = _rows(evidence, int(np.prod([wrong.size for wrong in box[:-1]])))
    if rows and (not phrases or box[-1].size == shape[-1]):
        return Places((rows[0],), tuple(box), rest, rows[1])
    tail = flat_tail(evidence)
    start = int(np.argmax(evidence.wrong()))
    if tail and not rest and start != np.ravel_multi_index([int(wrong[0]) for wrong in box], shape):
        mask = (np.arange(evidence.truth.size) >= start).reshape(shape)
        return Places((tail,), tuple(box), mask=mask)
    return Places(tuple(phrases), tuple(box), rest)


def border(evidence: Evidence, channel: int) -> str | None:
    """Return "a border of width 1 along axes 2 and 3" if the error is there and nowhere else; otherwise None."""
    axes = _plane(evidence.truth.ndim, channel)
    if axes is None:
        return None
    others = tuple(a for a in range(evidence.truth.ndim) if a not in axes)
    worst = evidence.error.max(axis=others) if others else evidence.error
    wrong = worst > _BORDER * evidence.tail
    widths = []
    for axis in (0, 1):
        share = wrong.mean(axis=1 - axis)
        widths += [_leading(share > 0.5), _leading(share[::-1] > 0.5)]
    top, bottom, left, right = widths
    H, W = wrong.shape
    inner = wrong[top : H - bottom, left : W - right]
    if not any(widths) or not inner.size or inner.any() or 2 * inner.size < wrong.size // 2:
        return None
    # A single side is a range of one axis, which `places` reports.
    if sum(width > 0 for width in widths) < 2 or (top and bottom and not (left or right)):
        return None
    if (left and right and not (top or bottom)) or 2 * wrong.sum() < wrong.size - inner.size:
        return None
    if top == bottom == left == right:
        return f"a border of width {top} along axes {axes[0]} and {axes[1]}"
    down = f"axis {axes[0]}: {top} before, {bottom} after"
    return f"a border ({down}; axis {axes[1]}: {left} before, {right} after)"


def flat_tail(evidence: Evidence) -> str | None:
    """Return "the elements from 640 on of 924, counted flat" if the error begins there, in mid-row."""
    wrong = evidence.wrong().ravel()
    if evidence.truth.ndim < 2 or not wrong.any():
        return None
    start, N, row = int(np.argmax(wrong)), wrong.size, evidence.truth[0].size
    # _RIGHT right elements at the row's start are no accident if most of the next ones are wrong.
    if start % row < _RIGHT or N - start < _RIGHT or wrong[start:].mean() < 0.75:
        return None
    multiple = _multiple(start)
    return f"the elements from {start} on of {N}, counted flat{multiple and f' ({multiple})'}"


def _flat_rest(evidence: Evidence) -> tuple[tuple[str, ...], np.ndarray]:
    """Find what is left of the flat data after whole blocks, if no element of it is computed and all others are.

    -> its phrases, the shortest rest first; its elements
    """
    wrong, actual = evidence.wrong().ravel(), evidence.actual.ravel()
    N, first = wrong.size, int(np.argmax(wrong))
    # The truth may be zero, too, where zeros stand.
    lost = wrong | (actual == actual[first])
    starts = {b: N - N % b for b in BLOCKS if b < N and N % b}
    fitting = sorted({s for s in starts.values() if s <= first and wrong.any() and lost[s:].all()}, reverse=True)
    phrases = tuple(
        f"the last {N - start} of {N} along the flat data, after the last whole block of "
        + joined([b for b, s in starts.items() if s == start], "or")
        for start in fitting
    )
    return phrases, (np.arange(N) >= max(fitting, default=N)).reshape(evidence.truth.shape)


def contents(evidence: Evidence, where: tuple[np.ndarray, ...]) -> str | None:
    """Return "zero", "NaN", "infinite" or "constant 3.5" if every wrong element at `where` is that; else None."""
    wrong = evidence.wrong()[where]
    actual, truth = evidence.actual[where][wrong], evidence.truth[where][wrong]
    if not actual.size:
        return None
    if np.isnan(actual).all():
        return "NaN"
    if np.isinf(actual).all():
        return "infinite"
    value = float(actual[0])
    if not np.isfinite(value) or (actual != value).any():
        return None
    if not value:
        return "zero"
    # A single number is no constant, nor are equal numbers where the truth is constant, too.
    varied = actual.size > 1 and np.ptp(truth) > evidence.noise.of(np.abs(truth)).max()
    fill = _FILLS.get(float(np.float32(value))) if abs(value) < 3e38 else None
    return f"{value:.6g}, memory's {fill}" if fill else f"constant {value:.6g}" if varied else None


def axis_name(axis: int, channel: int, ndim: int) -> str:
    if axis == channel % ndim:
        return f"axis {axis} (channels)"
    return f"axis {axis} (batch)" if axis == 0 and ndim > 2 else f"axis {axis}"


def index_set(chosen: np.ndarray, n: int, axis: str) -> str | None:
    """Describe some of n indices of an axis in words; None if there is no short description.

    chosen: sorted; not all of them
    """
    k, first, last = chosen.size, int(chosen[0]), int(chosen[-1])
    run = last - first + 1 == k
    if run and first == 1 and last == n - 1:
        return f"items from 1 on of {axis}"
    if run and last == n - 1:
        return f"the last {k} of {n} along {axis}{_tail_block(first, n)}"
    if run and first == 0:
        return f"the first {k} of {n} along {axis}"
    if k == 1:
        return f"index {first} of {n} along {axis}"
    if run:
        return f"indices {first} to {last} of {n} along {axis}"
    gaps = np.flatnonzero(np.diff(chosen) > 1)
    if gaps.size == 1 and first == 0 and last == n - 1 and 2 * k <= n:
        head = int(gaps[0]) + 1
        if head == k - head:
            return f"a border of width {head} along {axis}"
        return f"the first {head} and the last {k - head} of {n} along {axis}"
    few = joined(chosen.tolist(), "and") if k <= _LISTED else ""
    return _periodic(chosen, n, axis) or (f"indices {few} of {n} along {axis}" if few else None)


def _wrong_slices(evidence: Evidence, axis: int) -> np.ndarray | None:
    """Return the wrong slices of an axis; None if wrong and right ones are not clearly apart."""
    others = tuple(a for a in range(evidence.truth.ndim) if a != axis)
    rms, honest = (np.sqrt(np.mean(z * z, axis=others)) for z in (evidence.error, evidence.honest))
    worst, usual = np.abs(evidence.error.max(axis=others)), max(float(honest.max()), 1.0)
    score = np.maximum(rms / usual, worst / evidence.tail)
    wrong = score > _WRONG
    # An engine's own rounding may be near the limit in every slice: then a wrong one stands far above it.
    right = score <= max(_WRONG / 2, score[wrong].min() / _APART if wrong.any() else 0.0)
    return np.flatnonzero(wrong) if (wrong | right).all() else None


def _rows(evidence: Evidence, boxed: int) -> tuple[str, np.ndarray] | None:
    """Find periodic wrong rows of the last axis, counted through all the others: their phrase, their elements.

    boxed: rows of the smallest box that holds them, which is said if it has no others
    """
    shape = evidence.truth.shape
    if len(shape) < 3 or shape[0] == 1 == shape[1]:
        return None
    flat = (-1, shape[-1])
    merged = Evidence(evidence.actual.reshape(flat), evidence.truth.reshape(flat), evidence.run.reshape(flat))
    wrong, n = _wrong_slices(merged, 0), len(merged.truth)
    if wrong is None or not 0 < wrong.size < boxed:
        return None
    phrase = _periodic(wrong, n, "the rows")
    among = np.isin(np.arange(n), wrong)[:, None]
    return (phrase, np.broadcast_to(among, merged.truth.shape).reshape(shape)) if phrase else None


def _plane(ndim: int, channel: int) -> tuple[int, int] | None:
    """Return the two axes of a picture; None if there are not exactly two."""
    axes = [a for a in range(ndim) if a != channel % ndim and (a > 0 or ndim < 4)]
    if ndim == 2:
        axes = [0, 1]
    return (axes[0], axes[1]) if len(axes) == 2 else None


def _leading(flags: np.ndarray) -> int:
    """Count the True values at the beginning."""
    return int(flags.size if flags.all() else np.argmin(flags))


def _tail_block(first: int, n: int) -> str:
    """Name the block sizes that leave this tail over, or the multiple at which it starts."""
    blocks = [b for b in BLOCKS if n % b and first == n - n % b and first]
    if blocks:
        return f", after the last whole block of {joined(blocks, 'or')}"
    return f", from {first} on, {_multiple(first)}" if _multiple(first) else ""


def _multiple(n: int) -> str:
    largest = max((b for b in BLOCKS[1:] if n and n % b == 0), default=0)
    return f"a multiple of {largest}" if largest else ""


def _periodic(chosen: np.ndarray, n: int, axis: str) -> str | None:
    """Describe every k-th index, or one run of indices in every k; None if the indices are not periodic."""
    flags = np.zeros(n, bool)
    flags[chosen] = True
    # A period must occur at least three times.
    for period in range(2, n // 3 + 1):
        if not np.array_equal(flags[period:], flags[:-period]):
            continue
        inside = np.flatnonzero(flags[:period])
        if inside.size == 1:
            start = f" from {int(inside[0])} on" if inside[0] else ""
            return f"every {_ordinal(period)} index{start} of {n} along {axis}"
        if inside[-1] - inside[0] + 1 == inside.size:
            return f"indices {int(inside[0])} to {int(inside[-1])} of every {period} along {axis}"
        return None
    return None


def _ordinal(n: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{n}{'th' if n % 100 in (11, 12, 13) else endings.get(n % 10, 'th')}"


def joined(items: Sequence[object], word: str) -> str:
    """Join the items: "1, 2 and 3"."""
    texts = [str(item) for item in items]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} {word} {texts[-1]}"
