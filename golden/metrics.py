"""Measure one output, separately from any judgement, so that its metrics can be judged again.

Errors are measured in units of the bound: z = (y - truth) / limit. Where no bound is derived (a whole
model) they are measured in units of the honest run's RMS error.
"""

import functools
import math
from collections.abc import Mapping

import msgspec
import numpy as np

from refsd.golden.projections import Projection
from refsd.golden.rounding import Bound
from refsd.numerics.printable import printable

# Stands for infinity: JSON has none.
INFINITE = 1e30
_TILE = 8
_LARGE = 4.0  # times the median: a larger spread is not a usual one
_LONGEST = 200  # characters of an output's name


class Errors(msgspec.Struct, frozen=True):
    """Statistics of z over one output.

    worst:    max |z|
    at:       its index
    rms:      root mean square
    bias:     mean of z
    gain:     mean of z sign(truth), which shows a wrong scale
    channel:  the worst channel's RMS; channel_at: its index
    tile:     the worst tile's RMS; tile_at: where it starts. A tile has all channels, 8 steps of each of the
              last two other axes, and one step of the rest
    """

    worst: float
    at: tuple[int, ...]
    rms: float
    bias: float
    gain: float
    channel: float
    channel_at: int
    tile: float
    tile_at: tuple[int, ...]


class Metrics(msgspec.Struct, frozen=True):
    """The measurements of one output.

    output:      its name
    shape:       of the truth; found: of the engine's answer, None if the engine gave no such output
    unwanted:    True for an output that the case does not ask for
    whole:       the dtype of an answer in whole numbers where the case asks for floating-point ones; else ""
    not_finite:  elements that are NaN or infinite where the truth is not (or the reverse); not_finite_at: the first
    overflowed:  elements that are finite in the truth and not in the honest run; 0 with a bound, which covers them
    bounded:     True if z is in units of a derived bound, False if of the honest run's RMS
    groups:      the least number of independent errors: of unequal rows or of unequal channels, the fewer of both
    engine, honest: errors of the engine, and of the reference under the engine's numerics
    typical:     the same statistics of the bound's spread: what independent roundings give
    error, truth, found_value, limit: at the worst element
    relative_l2: |y - truth| / |truth| of the engine; honest_relative_l2: of the honest run
    place:       the first wrong item, in words, where the axes have names: "token 7 is 320, truth 345"
    along:       of a tap: its error projected on a gain, a bias and known changes; else on the bound's patterns
    """

    output: str
    shape: tuple[int, ...]
    found: tuple[int, ...] | None
    unwanted: bool = False
    whole: str = ""
    not_finite: int = 0
    not_finite_at: tuple[int, ...] = ()
    overflowed: int = 0
    bounded: bool = True
    groups: int = 1
    engine: Errors | None = None
    honest: Errors | None = None
    typical: Errors | None = None
    error: float = 0.0
    truth: float = 0.0
    found_value: float = 0.0
    limit: float = 0.0
    relative_l2: float = 0.0
    honest_relative_l2: float = 0.0
    place: str = ""
    along: tuple[Projection, ...] = ()


def measure(
    name: str,
    actual: np.ndarray | None,
    truth: np.ndarray,
    honest: np.ndarray,
    bound: Bound | None,
    channel: int,
    least: float = 2.0**-50,
    spread: np.ndarray | None = None,
    floating: bool = False,
) -> Metrics:
    """Measure one output.

    actual:  the engine's answer, any dtype; None if it is missing
    truth:   float64; honest: the reference under the engine's numerics; the same shape
    bound:   None for a model
    channel: the axis of channels
    floating: refuse an answer in whole numbers
    least:   without a bound: the least RMS error to assume for the honest run, as a share of the truth's RMS
    spread:  without a bound: the standard deviation that independent roundings give each element, if it is known;
             elements where it is large are measured in units of it
    """
    name = printable(name, _LONGEST)
    if actual is None or actual.shape != truth.shape:
        return Metrics(name, truth.shape, None if actual is None else actual.shape)
    if floating and actual.dtype.kind in "iub":
        return Metrics(name, truth.shape, actual.shape, whole=actual.dtype.name)
    if truth.ndim == 0:
        bound = bound and bound._replace(limit=np.atleast_1d(bound.limit), spread=np.atleast_1d(bound.spread))
        each = None if spread is None else spread[None]
        one = measure(name, actual[None], truth[None], np.asarray(honest)[None], bound, 0, least, each)
        return msgspec.structs.replace(one, shape=(), found=())
    itself = actual is honest  # of the reference as an engine: its errors are measured once
    actual, honest = np.asarray(actual, np.float64), np.asarray(honest, np.float64)
    limit, spread = _scale(truth, honest, bound, least, spread)
    free, finite, known = np.isinf(limit), np.isfinite(actual), np.isfinite(truth)
    odd = np.zeros(truth.shape, bool)
    if not (finite.all() and known.all()):
        odd = ~free & ~finite & (actual != truth) & ~(np.isnan(actual) & np.isnan(truth))
        odd |= ~free & ~known & finite
    skip = free | ~known
    signs = np.sign(_where(~np.isnan(truth), truth))
    of_honest = _difference(honest, truth, skip | ~np.isfinite(honest), limit, signs, channel)
    of_engine = of_honest if itself else _difference(actual, truth, skip | odd, limit, signs, channel)
    (near, honest_relative, honest_errors), (e, relative, engine) = of_honest, of_engine
    at = engine.at
    return Metrics(
        name,
        truth.shape,
        actual.shape,
        not_finite=int(odd.sum()),
        not_finite_at=_index(odd) if odd.any() else (),
        overflowed=0 if bound is not None else int((np.isfinite(truth) & ~np.isfinite(honest)).sum()),
        bounded=bound is not None,
        groups=(bound.groups if bound is not None else 0) or _groups(truth, channel),
        engine=engine,
        honest=honest_errors,
        typical=_typical(spread, limit, skip, signs, channel),
        error=_finite(actual[at]) - _finite(truth[at]) if truth.size else 0.0,
        truth=_finite(truth[at]) if truth.size else 0.0,
        found_value=_finite(actual[at]) if truth.size else 0.0,
        limit=_finite(limit[at]) if truth.size else 0.0,
        relative_l2=relative,
        honest_relative_l2=honest_relative,
        along=_along(bound, e, near) if bound is not None else (),
    )


def _along(bound: Bound, error: np.ndarray, honest: np.ndarray) -> tuple[Projection, ...]:
    """Project an error on the bound's patterns: from the truth and from the honest run, the lesser size.

    Numbers that repeat have errors that are not independent, but these are the honest run's, too.
    """
    found = []
    for change, along, deviation in bound.patterns:
        sizes = (float(np.einsum("i,i->", along.ravel(), e.ravel())) for e in (error, error - honest))
        found.append(Projection(change, max(min(sizes), 0.0), deviation, 0.0, 0.0))
    return tuple(found)


def not_asked_for(actual: Mapping[str, np.ndarray], truth: Mapping[str, np.ndarray]) -> list[Metrics]:
    """Return the metrics of outputs that the truth does not have."""
    others = [(printable(name, _LONGEST), y) for name, y in actual.items() if name not in truth]
    return [Metrics(name, (), y.shape, unwanted=True) for name, y in others]


def channel_axis(y: np.ndarray) -> int:
    """Return the axis of channels where none is declared: the second of a picture or latent, else the last."""
    return 1 if y.ndim in (4, 5) else -1


def _scale(
    truth, honest, bound: Bound | None, least: float, spread: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    if bound is not None:
        return bound.limit, bound.spread
    error = _where(np.isfinite(honest) & np.isfinite(truth), honest - truth)
    size = math.sqrt(float(np.mean(np.square(_where(np.isfinite(truth), truth))))) if truth.size else 0.0
    usual = np.square(error)
    if spread is not None and spread.size:
        usual = np.maximum(usual, spread**2)[spread <= _LARGE * np.median(spread)]
    # An honest run in float64 may have no error at all.
    unit = max(math.sqrt(float(np.mean(usual))) if usual.size else 0.0, size * least)
    limit = np.broadcast_to(unit, truth.shape) if spread is None else np.maximum(unit, spread)
    return limit, limit


def _where(use: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return y, with 0 where `use` is False."""
    return y if use.all() else np.where(use, y, 0.0)


def _difference(
    y: np.ndarray, truth: np.ndarray, skip: np.ndarray, limit: np.ndarray, signs: np.ndarray, channel: int
) -> tuple[np.ndarray, float, Errors]:
    """Return y - truth, with 0 where skipped; its L2 norm as a share of the truth's; its statistics."""
    with np.errstate(invalid="ignore", over="ignore"):
        e = _where(~skip, y - truth)
        size = norm(_where(~skip, truth))
        return e, _finite(norm(e) / size) if size else 0.0, _errors(units(e, limit), signs, channel)


def norm(y: np.ndarray) -> float:
    """Return the L2 norm, summed in one thread, so that its bits do not depend on the number of threads."""
    return math.sqrt(float(np.einsum("i,i->", y.ravel(), y.ravel())))


def units(e: np.ndarray, limit: np.ndarray | float) -> np.ndarray:
    """Return e in units of the limit, clipped to +-INFINITE; an error of 0 is 0 in any unit."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        z = e / limit
        if not (np.abs(z) <= INFINITE).all():
            z = np.where(e == 0, 0.0, z)
        if (np.abs(z) <= INFINITE).all():
            return z
    return np.clip(np.nan_to_num(z, nan=INFINITE, posinf=INFINITE, neginf=-INFINITE), -INFINITE, INFINITE)


def _typical(spread: np.ndarray, limit: np.ndarray, skip: np.ndarray, signs: np.ndarray, channel: int) -> Errors:
    """Return the statistics of independent roundings."""
    if spread is limit and limit.size and (limit > 0).all() and not skip.any():
        # 1 everywhere.
        at = (0,) * limit.ndim
        return Errors(1.0, at, 1.0, 1.0, float(signs.mean()), 1.0, 0, 1.0, at[1:])
    typical = np.divide(spread, limit, out=np.zeros_like(limit), where=(limit > 0) & ~np.isinf(limit))
    return _errors(np.where(skip, 0.0, typical), signs, channel)


def _errors(z: np.ndarray, signs: np.ndarray, channel: int) -> Errors:
    """Return the statistics of z. signs: of the truth"""
    if z.size == 0:
        return Errors(0.0, (), 0.0, 0.0, 0.0, 0.0, 0, 0.0, ())
    z = np.atleast_1d(z)
    channel %= z.ndim
    square = np.square(z)
    at = _index(square)
    channels = np.sqrt(square.mean(axis=tuple(axis for axis in range(z.ndim) if axis != channel)))
    tiles = square.mean(axis=channel)
    # Cut the last two remaining axes into tiles; every step of the other axes is a tile of its own.
    for axis in range(max(tiles.ndim - 2, 0), tiles.ndim):
        starts, counts = _tiles(tiles.shape[axis])
        shape = [-1 if a == axis else 1 for a in range(tiles.ndim)]
        tiles = np.add.reduceat(tiles, starts, axis=axis) / counts.reshape(shape)
    first = max(tiles.ndim - 2, 0)
    tile_at = tuple(i * _TILE if a >= first else i for a, i in enumerate(_index(tiles)))
    return Errors(
        worst=abs(float(z[at])),
        at=at,
        rms=math.sqrt(float(np.mean(square))),
        bias=float(z.mean()),
        gain=float((z * signs).mean()),
        channel=float(channels.max()),
        channel_at=int(channels.argmax()),
        tile=math.sqrt(float(tiles.max())),
        tile_at=tile_at,
    )


@functools.cache
def _tiles(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where the tiles of an axis start, and their lengths."""
    starts = np.arange(0, length, _TILE)
    return starts, np.diff(np.append(starts, length))


def _groups(truth: np.ndarray, channel: int) -> int:
    """Count the rows or the channels, whichever are fewer; equal ones once, for their errors are the same."""
    if not truth.size:
        return 1
    channels = np.moveaxis(truth, channel, 0)
    fewer = _distinct(channels, len(channels))
    return _distinct(np.moveaxis(channels.reshape(len(channels), -1), 1, 0), fewer)


def _distinct(slices: np.ndarray, most: int) -> int:
    """Count the different slices, up to `most`. Where their first numbers tell enough apart, no other is read."""
    first = np.sort(slices[(slice(None), *(0,) * (slices.ndim - 1))])
    if 1 + np.count_nonzero(first[1:] > first[:-1]) >= most:
        return most
    different: set[bytes] = set()
    for one in slices:
        different.add(one.tobytes())
        if len(different) == most:
            break
    return len(different)


def _index(x: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(x)), x.shape))


def _finite(x) -> float:
    return INFINITE if math.isnan(x) else float(min(max(x, -INFINITE), INFINITE))
