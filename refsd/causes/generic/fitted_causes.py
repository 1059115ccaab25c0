"""Fit a cause to the place of an error: a known bug in that place alone, memory that no code wrote, wrong scales.

The list of known bugs covers errors everywhere. Here the place comes from the error itself (error_places.py), and
each bug is tried in that place alone, so that no list of bugs by place is needed.
"""

from collections.abc import Callable, Mapping

import numpy as np

from refsd.causes.generic.error_places import Places, contents, flat_tail, index_set, joined, places, seen
from refsd.causes.generic.moved_values import moved, neighbour_at_an_end
from refsd.causes.generic.simple_relations import coarser
from refsd.causes.generic.solved_numbers import shown
from refsd.golden.evidence import Evidence
from refsd.golden.unwritten_memory import UNWRITTEN, unwritten

_BLOCKS = (256, 128, 64, 32, 16)
# Scales that vary by less than this share are one gain.
_VARIED = 0.02
_NEARLY_ALL = 0.8
# Rows and half their elements, at the least, for factors of rows.
_ROWS = 8
_VECTOR = 16
# By how much a factor of a row may be off 1 where its statistic is of this type: above, up to.
_TYPES_OF_STATISTICS = (("float16", 0.0, 2.0**-7), ("bfloat16", 2.0**-9, 2.0**-5))
# Scattered wrong elements, at the least, and their share, at the most, that may have a cause of their own.
_SCATTERED, _MOST = 16, 0.75
# What may become of right numbers in one place.
_CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "the sign is the other": np.negative,
    "the sign is lost": np.abs,
    "the numbers are doubled": lambda y: 2 * y,
    "the numbers are halved": lambda y: y / 2,
}
# Share of slices that may be something else where the others stand at other places.
_FEW_LOST = 0.25
# Sides of tiles; numbers of one, at the least; deviations that a correlation by chance may have.
_TILES, _UNLIKE, _CHANCE = (8, 16, 32, 64, 128, 256), 256, 4.0
# How a place is told that a loop over whole blocks leaves out.
_LEFT = "after the last whole block"


def fitted_causes(
    actual: np.ndarray, truth: np.ndarray, honest: np.ndarray, channel: int, suspects: Mapping[str, np.ndarray]
) -> list[str]:
    """List what explains an answer that no known bug explains everywhere, the likeliest first.

    actual:   the engine's; truth: float64; honest: the reference under the engine's numerics; all of one shape
    suspects: known bug -> the answer with it, of the same shape
    """
    evidence = seen(actual, truth, honest)
    if evidence is None or evidence.rough:
        return []
    suspects = {name: np.reshape(y, evidence.truth.shape) for name, y in suspects.items()}
    where = places(evidence, channel)
    place = f", in {joined(where.phrases, 'and')}" if where.phrases else ""
    garbage = unwritten(evidence)
    if garbage:
        return [f"{UNWRITTEN}{place}: {garbage}"]
    if not np.isfinite(evidence.actual).any():
        return _not_finite_alike(evidence, suspects)
    if not evidence.finite:
        same = _not_finite_alike(evidence, suspects) or _overflow(evidence)
        if same:
            return same
        alone = where.phrases if len(where.phrases) == 1 else ()
        left = dict.fromkeys(rest for rest in (*alone, *where.rest) if _LEFT in rest)
        if left and np.array_equal(np.isnan(evidence.actual), evidence.wrong()):
            return [f"nothing is computed: NaN, in {rest}" for rest in left]
    inside = contents(evidence, where.inside)
    if there := _but_for_zeros(evidence, channel, suspects):
        return there
    if evidence.finite and not (inside == "zero" and where.phrases):
        if copied := neighbour_at_an_end(evidence, channel):
            return [copied]
        there = _in_place(evidence, where, suspects)
        if there:
            return [f"{name}{place or _scattered(evidence)} alone" for name in there]
    if inside == "zero":
        tail = "" if place else flat_tail(evidence)
        alike = dict.fromkeys([f", in {tail}" if tail else place, *(f", in {rest}" for rest in where.rest)])
        return [f"nothing is computed: zeros{of}" for of in alike if of or _mostly_one(evidence)]
    if not evidence.finite:
        return []
    if inside is not None and (place or _mostly_one(evidence)):
        return [f"nothing is written{place}: {inside}"]
    order = moved(evidence, channel)
    if order is not None and (order.source >= 0).all():
        return [f"the right numbers in another order: {order.phrase}"]
    part = evidence.part(where.inside) if where.phrases else evidence
    if where.phrases and part.truth.size > 1 and np.ptp(part.truth) == 0:
        largest = float(np.abs(part.actual).max())
        text = f"where all should be {part.truth.flat[0]:g} stand numbers up to {largest:.3g}"
        return [f"{text}, as if nothing is written{place}"]
    factors = _factors_of_rows(part)
    if factors:
        return [f"{text}{place}" for text in factors]
    block = _block_of_scales(part)
    if block:
        return [f"each block of {block} has a factor of its own{place}"]
    grid = coarser(part)
    if grid is not None and grid.phrase.startswith("its values"):
        return [f"computed in a smaller type: {grid.phrase}{place}"]
    if grid is not None:
        return [f"{grid.phrase.replace('it is the truth', 'the answer is')}{place}"]
    if _beginning_of_rows(where, evidence.truth.shape):
        return [f"rows are written over at their beginning, as by the end of the row before{place}"]
    if order is not None and np.mean(order.source < 0) <= _FEW_LOST:
        return [f"right slices stand at other places: {order.phrase}"]
    return _lost_tile(evidence, where)


def _but_for_zeros(evidence: Evidence, channel: int, suspects: Mapping[str, np.ndarray]) -> list[str]:
    """Name the bugs that give the engine's numbers, but where nothing was written: zeros there."""
    wrong = evidence.wrong()
    zero = wrong & (evidence.actual == 0)
    if not evidence.finite or min(np.count_nonzero(zero), np.count_nonzero(wrong & ~zero)) < _SCATTERED:
        return []
    alone = Evidence(np.where(zero, 0, evidence.truth), evidence.truth, evidence.run)
    where = places(alone, channel).phrases
    place = f", in {joined(where, 'and')}" if where else _scattered(alone)
    names = [name for name, y in suspects.items() if evidence.fits(np.where(zero, 0, y))]
    return [f"{name}, and nothing is computed: zeros{place}" for name in names]


def _lost_tile(evidence: Evidence, where: Places) -> list[str]:
    """Say that a whole tile of one axis holds numbers that have nothing to do with the right ones."""
    axes = [axis for axis, own in enumerate(where.box) if len(own) < evidence.truth.shape[axis]]
    if len(axes) != 1 or where.mask is not None:
        return []
    own, part = where.box[axes[0]], evidence.part(where.inside)
    n, size, behind = len(own), part.truth.size, own[-1] + 1 == evidence.truth.shape[axes[0]]
    tile = n if n in _TILES else int(own[0]) if behind else 0  # all behind the first may be none, too
    if tile not in _TILES or own[-1] != own[0] + n - 1 or own[0] % tile or size < _UNLIKE:
        return []
    centred = [(y - y.mean(axis=axes[0], keepdims=True)).ravel() for y in (part.actual, part.truth)]
    alike = abs(np.corrcoef(*centred)[0, 1]) > _CHANCE / size**0.5
    which = f"a tile of {n} is" if n == tile else f"tiles of {tile} behind the first are"
    text = f"{which} not written, or written over: what stands there is unlike the right numbers"
    return [] if alike else [f"{text}, in {joined(where.phrases, 'and')}"]


def is_gap(actual: np.ndarray, truth: np.ndarray, honest: np.ndarray, channel: int) -> bool:
    """Return True if the answer was not computed where it is wrong: it is not finite there, or one constant.

    The wrong part is nearly all of it, or a box of slices. found, truth, honest, channel: as for `fitted_causes`
    """
    if not np.isfinite(actual).all():
        return True
    evidence = seen(actual, truth, honest)
    if evidence is None:
        return False
    where = places(evidence, channel)
    whole = where.phrases or np.mean(evidence.wrong()) > _NEARLY_ALL
    return bool(whole and contents(evidence, where.inside) is not None)


def _mostly_one(evidence: Evidence) -> bool:
    """Return True if what stands where the answer is wrong stands nearly everywhere."""
    wrong = evidence.wrong()
    return bool(np.mean(wrong | (evidence.actual == evidence.actual[wrong][0])) > _NEARLY_ALL)


def _not_finite_alike(evidence: Evidence, suspects: Mapping[str, np.ndarray]) -> list[str]:
    """Name the bugs that give NaN or infinity at the same elements, and the engine's numbers elsewhere."""
    finite = np.isfinite(evidence.actual)
    named = []
    for name, y in suspects.items():
        if np.array_equal(np.isfinite(y), finite) and (not finite.any() or _near(evidence, y, finite)):
            named.append(name)
    return named


def _overflow(evidence: Evidence) -> list[str]:
    """Report an overflow if found is infinite, with the truth's sign, exactly where the truth is largest."""
    actual, truth = evidence.actual, evidence.truth
    infinite, size = np.isinf(actual), np.abs(truth)
    if np.isnan(actual).any() or (np.sign(actual) != np.sign(truth))[infinite].any():
        return []
    least = float(size[infinite].min())
    if float(size[~infinite].max()) > 1.01 * least:
        return []
    return [f"numbers overflow: infinite where the truth is beyond {least:.4g}"]


def _near(evidence: Evidence, y: np.ndarray, where: np.ndarray) -> bool:
    """Return True if the numbers at `where` are those of y to within 2**-9 of their size, 4 float16 roundings."""
    size = np.maximum(np.abs(y[where]), np.sqrt(np.mean(y[where] ** 2)))
    return bool((np.abs(evidence.actual[where] - y[where]) <= 2.0**-9 * size).all())


def _scattered(evidence: Evidence) -> str:
    """Describe a place that is no box: whole rows, counted over all axes, or so many elements."""
    wrong = evidence.wrong().reshape(-1, evidence.truth.shape[-1])
    rows = wrong.mean(axis=1) > _NEARLY_ALL
    text = index_set(np.flatnonzero(rows), len(rows), "the rows") if rows.any() and not wrong[~rows].any() else None
    return f", in {text}" if text else f", at {int(wrong.sum())} of {wrong.size} elements"


def _in_place(evidence: Evidence, where: Places, suspects: Mapping[str, np.ndarray]) -> list[str]:
    """Name the bugs that leave no more than honest rounding in the only wrong place; the first is the simplest.

    The place is a box of slices; where there is none, the wrong elements, if they are neither few nor most.
    """
    wrong = evidence.wrong()
    inside = where.inside if where.phrases else (wrong,)
    scattered = np.count_nonzero(wrong) >= _SCATTERED and (np.mean(wrong) <= _MOST or flat_tail(evidence))
    if not where.phrases and (not scattered or contents(evidence, where.inside) is not None):
        return []
    part = evidence.part(inside)
    changes = _CHANGES if where.phrases and part.truth.size >= _SCATTERED else {}
    distances = {}
    for name, y in {**suspects, **{name: change(evidence.truth) for name, change in changes.items()}}.items():
        wrong = y[inside].astype(np.float64)
        # Where a bit can only be wrong by its inverse, scattered wrong numbers tell nothing more.
        if (where.phrases or "inverted" not in name) and np.isfinite(wrong).all() and part.fits(wrong):
            distances[name] = float(np.sqrt(np.mean(part.z(wrong) ** 2)))
    least = max(2 * min(distances.values(), default=0.0), 1.0)
    return [name for name, apart in distances.items() if apart <= least]


def _beginning_of_rows(where: Places, shape: tuple[int, ...]) -> bool:
    """Return True if the first few numbers of many rows are wrong, less than a vector of 16, and no others."""
    if len(shape) < 2 or not where.phrases or shape[-1] < 2 * _ROWS:
        return False
    wrong = where.box[-1]
    rows = int(np.prod([len(indices) for indices in where.box[:-1]]))
    return wrong[0] == 0 and wrong.size == wrong[-1] + 1 < _VECTOR and 2 * rows >= int(np.prod(shape[:-1]))


def _factors_of_rows(part: Evidence) -> list[str]:
    """Describe an answer whose rows are each the truth times their own number; else return nothing.

    Such a number is a statistic of the row: its mean square, a sum of its exponentials; near 1 it has too few bits.
    A sum that is rounded after each term loses more: up to the fourfold may be either small type.
    """
    n = part.truth.shape[-1]
    if part.truth.ndim < 2 or n < 2 * _ROWS or part.truth.size < _ROWS * n:
        return []
    factor = _factors(part, n)
    if factor is None:
        return []
    off = float(np.abs(factor - 1).max())
    kinds = [f" in {kind}" for kind, least, most in _TYPES_OF_STATISTICS if least < off <= most]
    # Most factors must be off: a single one is a wrong row, which has another cause.
    if np.mean(np.abs(factor - 1) > off / 16) < 0.5:
        return []
    if np.ptp(factor) < off / 64:
        return [f"{shown(float(factor.mean()))} times the right answer"]
    range_ = f"{float(factor.min()):.5g} to {float(factor.max()):.5g}"
    return [f"each row has a factor of its own, {range_}: a statistic of the row{kind}" for kind in kinds or [""]]


def _block_of_scales(part: Evidence) -> int | None:
    """Return the length of blocks along the last axis that are each the truth times their own number; else None."""
    n = part.truth.shape[-1]
    for block in _BLOCKS:
        if n % block or n == block or part.truth.size < 2 * block:
            continue
        scale = _factors(part, block)
        if scale is not None and scale.reshape(-1, n // block).std(axis=1).max() > _VARIED * np.abs(scale).mean():
            return block
    return None


def _factors(part: Evidence, n: int) -> np.ndarray | None:
    """Return the numbers [rows, 1] by which rows of n elements are multiplied; None if they are not."""
    truth, actual = part.truth.reshape(-1, n), part.actual.reshape(-1, n)
    square = (truth**2).sum(axis=1, keepdims=True)
    if not square.all():
        return None
    factor = (truth * actual).sum(axis=1, keepdims=True) / square
    return factor if part.fits((truth * factor).reshape(part.truth.shape)) else None
