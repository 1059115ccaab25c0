"""Project errors on known changes: statistics over many elements show what no single element shows.

    size = <e, d> / <d, d>,  <a, b> = sum_i a_i b_i / s_i^2

e is the error of a tap, d the effect of the change on it, s_i the size of an honest error at element i. A gain of
1.001 has d = truth and size 0.001; tanh in place of erf has d = the difference of the two at the tap, and size 1.

Errors within one channel, or one row of pixels or tokens, may be correlated, since the error of one weight or
input spreads. So the standard error of a size is that of sums over whole blocks of channels, and of positions: the
larger, or both together less what they share (Cameron, Gelbach & Miller 2011). The honest run's standard error
counts if it is larger, and so does the RMS size over runs with random roundings, if there are any.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

# A size is wrong if it exceeds _SIGNIFICANT standard errors (_SIGNIFICANT_PART in one channel or tile), _HONEST
# times the honest run's size, and _LOST times what an honest float32 engine may lose. Measured in torch's float16
# and bfloat16 models: at most 3.6 standard errors; 16 in one channel or tile, where roundings of nearly equal
# numbers, and of values that attention spreads over all tokens, are alike.
_SIGNIFICANT = 8.0
_SIGNIFICANT_PART = 20.0
# The values of Projection.times.
TIMES = (_SIGNIFICANT, _SIGNIFICANT_PART)
_HONEST = 4.0
_LOST = 4.0
# Blocks of channels, and of positions, whose sums count as independent; below _FEWEST, do not project.
_BLOCKS = 32
_FEWEST = 12
# Least positions to measure a channel's gain, least channels to measure a tile's.
_ELEMENTS = 16
_TILE = 8
# A change that has an opposite, which a negative size is of, and how much too large it makes a number.
_TOO_LARGE = " too large"
_AMOUNT = re.compile(rf"( \S+ (times|%))?{_TOO_LARGE}$")


class Projection(msgspec.Struct, frozen=True):
    """A tap's error projected on one change.

    change: "gain", "bias", "gain of channel 7", "gain of the tile at [8, 0]", or a known bug's name
    size:   the multiple of the change's effect that fits best; a gain of 0.002: 1.002; a bias: a share of the RMS;
            negative: of the opposite change
    error:  its standard error
    honest: the same multiple in the honest run
    least:  the size that an honest float32 engine may have
    times:  the size that is allowed, in standard errors
    """

    change: str
    size: float
    error: float
    honest: float
    least: float
    times: float = _SIGNIFICANT

    @property
    def allowed(self) -> float:
        return max(self.times * self.error, _HONEST * abs(self.honest), self.least)

    @property
    def phrase(self) -> str:
        """Return "gain: 0.002 +- 1e-05", or "eps too small: -0.0986 +- 0.001 of eps ten times too large"."""
        size = f"{self.size:.3g} +- {self.error:.1g}"
        if self.size < 0 and self.change.endswith(_TOO_LARGE):
            return f"{_AMOUNT.sub('', self.change)} too small: {size} of {self.change}"
        return f"{self.change}: {size}"


class _Tap(NamedTuple):
    """A tap, laid out [channels, positions], in units of an honest error at each element.

    error, honest: of the engine and of the honest run
    truth: and its RMS in the tap's own units
    scale: size of an honest error; grid: the shape of the positions
    """

    error: np.ndarray
    honest: np.ndarray
    truth: np.ndarray
    rms: float
    scale: np.ndarray
    grid: tuple[int, ...]
    channel: int

    def laid_out(self, y: np.ndarray) -> np.ndarray:
        return _laid_out(y, self.channel) / self.scale


def project(
    actual: np.ndarray,
    truth: np.ndarray,
    honest: np.ndarray,
    channel: int,
    unit: float,
    least: float,
    effects: Mapping[str, np.ndarray],
    scattered: Sequence[np.ndarray] = (),
) -> tuple[Projection, ...]:
    """Project a tap's error on gain, bias, the gain of its worst channel and tile, and known changes' effects.

    actual, truth, honest: of one shape, finite
    channel:   the axis of channels
    unit:      half a unit in the last place of the storage dtype
    least:     what an honest float32 engine may lose, as a share of the truth's RMS
    effects:   change -> its effect on the tap
    scattered: errors of honest runs with random roundings
    """
    truth, honest = np.asarray(truth, np.float64), np.asarray(honest, np.float64)
    rms = math.sqrt(float(np.mean(truth**2))) if truth.size else 0.0
    if truth.ndim < 2 or not rms:
        return ()
    usual = max(math.sqrt(float(np.mean((honest - truth) ** 2))), least * rms)
    laid_out = _laid_out(truth, channel)
    scale = np.sqrt(usual**2 + (unit * laid_out) ** 2)
    grid = tuple(np.delete(truth.shape, channel))
    error, near = (_laid_out(y - truth, channel) / scale for y in (actual, honest))
    tap = _Tap(error, near, laid_out / scale, rms, scale, grid, channel)
    effects = {"bias": np.full(truth.shape, rms), **effects}
    runs, of_gain = [tap.laid_out(error) for error in scattered], _products(tap, tap.truth)
    known = [_along(tap, "gain", truth, least, runs, of_gain)]
    known += [_along(tap, name, effect, least, runs) for name, effect in effects.items()]
    return (*(p for p in known if p is not None), *_parts(tap, of_gain, least, runs))


def _laid_out(y: np.ndarray, channel: int) -> np.ndarray:
    return np.moveaxis(np.asarray(y, np.float64), channel, 0).reshape(y.shape[channel], -1)


def _along(tap: _Tap, name: str, effect: np.ndarray, least: float, runs, known=None) -> Projection | None:
    """Project on a change of all channels and positions; None where it affects too few of them."""
    size = math.sqrt(float(np.mean(np.square(effect, dtype=np.float64))))
    if not size or not np.isfinite(size):
        return None
    d, squares, products = known or _products(tap, tap.laid_out(effect))
    total = float(squares.channels.sum())
    if min(_many(_blocks(of)) for of in squares) < _FEWEST:
        return None
    s, h = (float(of.channels.sum()) / total for of in products)
    error = max(
        _error(_scores(e, d, at), of, squares, at) / total
        for e, of, at in zip((tap.error, tap.honest), products, (s, h), strict=True)
    )
    error = max(error, _of_runs([float(_sums(run, d).channels.sum()) / total for run in runs]))
    return Projection(name, s, error, h, _LOST * least * tap.rms / size)


class _Sums(NamedTuple):
    """Sums of a product [channels, positions]: of each channel over positions, of each position over channels."""

    channels: np.ndarray
    positions: np.ndarray


def _sums(x: np.ndarray, y: np.ndarray) -> _Sums:
    return _Sums(np.einsum("cp,cp->c", x, y), np.einsum("cp,cp->p", x, y))


def _products(tap: _Tap, d: np.ndarray) -> tuple[np.ndarray, _Sums, list[_Sums]]:
    """Return d, sums of d d, and sums of e d for the engine's error e and the honest run's."""
    return d, _sums(d, d), [_sums(e, d) for e in (tap.error, tap.honest)]


def _scores(e: np.ndarray, d: np.ndarray, size: float) -> float:
    """Return the sum of squares of (e - size d) d."""
    scores = np.multiply(d, -size)
    scores += e
    scores *= d
    return float(np.einsum("cp,cp->", scores, scores))


def _error(squared: float, products: _Sums, squares: _Sums, size: float) -> float:
    """Return the standard deviation of the sum of scores (e - size d) d, which are correlated within blocks.

    squared: the sum of squared scores; products: sums of e d; squares: sums of d d
    """
    sums = [_blocks(of - size * square) for of, square in zip(products, squares, strict=True)]
    apart = [float((of * of).sum()) * len(of) / (len(of) - 1) for of in sums]
    return math.sqrt(max(*apart, sum(apart) - squared))


def _blocks(sums: np.ndarray) -> np.ndarray:
    return np.add.reduceat(sums, _starts(len(sums)))


@functools.cache
def _starts(length: int) -> np.ndarray:
    return np.linspace(0, length, min(length, _BLOCKS), endpoint=False).astype(int)


def _many(weights: np.ndarray) -> float:
    """Return the effective number of equal weights: (sum w)^2 / sum w^2."""
    square = float((weights * weights).sum())
    return float(weights.sum()) ** 2 / square if square else 0.0


def _of_runs(sizes: Sequence[float]) -> float:
    return math.sqrt(sum(s * s for s in sizes) / len(sizes)) if sizes else 0.0


def _parts(tap: _Tap, of_gain: tuple[np.ndarray, _Sums, list[_Sums]], least: float, runs) -> Iterator[Projection]:
    """Yield the gain of the worst channel and the gain of the worst tile. A tile has all channels."""
    channels, positions = tap.truth.shape
    high, wide = tap.grid[-2:] if len(tap.grid) > 1 else (1, *tap.grid)
    rows, columns = np.arange(0, high, _TILE), np.arange(0, wide, _TILE)

    def tiles(sums: _Sums) -> np.ndarray:
        over = np.add.reduceat(sums.positions.reshape(-1, high, wide), rows, axis=1)
        return np.add.reduceat(over, columns, axis=2).ravel()

    def name(i):
        row, column = divmod(i % (len(rows) * len(columns)), len(columns))
        return f"gain of the tile at [{rows[row]}, {columns[column]}]"

    parts = []
    if positions >= _ELEMENTS and channels > 1:
        parts.append((lambda sums: sums.channels, lambda c: f"gain of channel {c}"))
    if channels >= _ELEMENTS and positions > _TILE:
        parts.append((tiles, name))
    if not parts:
        return
    d, squares, products = of_gain
    errors = [(of, _sums(e, e)) for of, e in zip(products, (tap.error, tap.honest), strict=True)]
    scattered = [_sums(run, d) for run in runs]
    counts = _Sums(np.full(channels, float(positions)), np.full(positions, float(channels)))
    for summed, name_of in parts:
        of_errors = [(summed(products), summed(own)) for products, own in errors]
        yield _worst(least, summed(squares), summed(counts), of_errors, [summed(run) for run in scattered], name_of)


def _worst(
    least: float,
    total: np.ndarray,
    counts: np.ndarray,
    errors: Sequence[tuple[np.ndarray, np.ndarray]],
    scattered: Sequence[np.ndarray],
    name: Callable[[int], str],
) -> Projection:
    """Return the gain of the worst part. In each part d = truth; e = the engine's error, then the honest run's.

    total:     sums of d d; counts: of 1
    errors:    sums of e d, and of e e
    scattered: sums of r d, r being the errors of the runs with random roundings
    name:      a part's number -> its name
    """
    known = np.where(total > 0, total, np.inf)
    noise, sizes = np.zeros_like(known), []
    for products, squares in errors:
        sizes.append(products / known)
        rest = (squares - sizes[-1] ** 2 * total) / counts
        noise = np.maximum(noise, np.maximum(rest, np.median(rest)))
    s, h = sizes
    error = np.sqrt(noise / known)
    least = _LOST * least
    allowed = np.maximum(np.maximum(_SIGNIFICANT_PART * error, _HONEST * np.abs(h)), least)
    i = int(np.argmax(np.abs(s) / allowed))
    own = max(float(error[i]), _of_runs([float(run[i] / known[i]) for run in scattered]))
    return Projection(name(i), float(s[i]), own, float(h[i]), least, _SIGNIFICANT_PART)
