"""Compare an engine's output with the truth, in units of the honest run's error. Descriptions build on this."""

import math
from typing import Any, NamedTuple

import numpy as np

# An octave with fewer numbers than this gives no estimate of its error.
_FEW = 32
# The relative error that float32 always has.
_LEAST = 2.0**-24
_CLIP = 1e9
_SAMPLE = 2048
_ROUGH = 0.05

# A prediction fits if it leaves an error of at most this multiple of the honest run's, as the verdict allows,
_HONEST = 4.0
# and at most this share of the error relative to the truth.
_CLEARLY = 0.5


class Noise(NamedTuple):
    """The honest run's RMS error as a function of a number's magnitude, octave by octave.

    first: the exponent of sizes[0]: numbers in [2**(first - 1), 2**first)
    sizes: float64 [octaves]
    """

    first: int
    sizes: np.ndarray

    def of(self, size: np.ndarray) -> np.ndarray:
        """Return the error at these magnitudes; beyond the largest known one it grows in proportion."""
        octave = np.frexp(size)[1].astype(np.int64) - self.first
        last = self.sizes.size - 1
        known = self.sizes[np.clip(octave, 0, last)]
        return np.ldexp(known, np.maximum(octave - last, 0)) if octave.size and octave.max() > last else known


def noise(truth: np.ndarray, honest: np.ndarray) -> Noise:
    """Measure the honest run's noise. truth, honest: finite, float64."""
    size = np.abs(truth)
    rms = _rms(truth)
    # Numbers 20 octaves or more below the RMS share one octave.
    low = math.frexp(rms)[1] - 20 if rms else -1000
    octave = np.maximum(np.frexp(size)[1].astype(np.int64), low)
    first = int(octave.min())
    octave -= first
    count = np.bincount(octave.ravel())
    square = np.bincount(octave.ravel(), ((honest - truth) ** 2).ravel())
    floor = _LEAST * np.ldexp(1.0, first + np.arange(count.size)) + _LEAST * 2.0**-10 * rms + 1e-300
    sizes = np.sqrt(square / np.maximum(count, 1))
    enough = np.flatnonzero(count >= min(_FEW, truth.size))
    if not enough.size:
        enough = np.flatnonzero(count == count.max())
    for o in np.flatnonzero(count < count[enough].min()):
        above = enough[enough > o]
        more = sizes[above[0]] if above.size else math.ldexp(sizes[enough[-1]], int(o - enough[-1]))
        sizes[o] = max(sizes[o], more)
    return Noise(first, np.maximum(sizes, floor))


class Evidence:
    """An output and its errors in units of the honest run's noise.

    actual, truth: float64, of one shape; the truth and the honest run are finite
    run:          the honest run; noise: its error by magnitude
    tail:         the largest of its errors in units of the noise, at least 4
    honest:       |honest - truth| in units of the noise
    error:        |actual - truth| in the same units; very large where actual is not a number
    """

    def __init__(
        self, actual: np.ndarray, truth: np.ndarray, honest: np.ndarray, known: tuple[Noise, float] | None = None
    ):
        self.actual, self.truth = actual, truth
        self.noise, self.tail = known or (noise(truth, honest), 4.0)
        self.honest = np.abs(units(honest, truth, self.noise))
        self.run = honest
        self.tail = max(self.tail, float(self.honest.max()))
        self.finite = bool(np.isfinite(actual).all())
        self.error = np.abs(self.z(truth))
        rng = np.random.default_rng(1)
        self.sample = np.arange(truth.size) if truth.size <= _SAMPLE else rng.integers(0, truth.size, _SAMPLE)

    @property
    def rough(self) -> bool:
        """Return True if the honest run's error is so large that almost any description would fit."""
        return _rms(self.run - self.truth) > _ROUGH * _rms(self.truth)

    def part(self, box: tuple[np.ndarray, ...]) -> "Evidence":
        """Return the evidence of the elements at numpy.ix_(...), in the same units."""
        return Evidence(self.actual[box], self.truth[box], self.run[box], (self.noise, self.tail))

    def z(self, predicted: np.ndarray, where: Any = ...) -> np.ndarray:
        """Return actual - predicted in units of the noise. where: the part of actual that is predicted"""
        return units(self.actual[where], predicted, self.noise)

    def wrong(self) -> np.ndarray:
        """Return the elements whose error is larger than any honest run's."""
        return self.error > _HONEST * self.tail

    def fits(self, predicted: np.ndarray, where: Any = ...) -> bool:
        """Return True if the prediction leaves an honest run's error, and clearly less than the truth leaves.

        where: the part of actual that is predicted
        """
        if where is ... and not self._may_fit(predicted.ravel()[self.sample]):
            return False
        return self._better(self.z(predicted, where), where)

    def fits_sum(self, predicted: np.ndarray) -> bool:
        """Return the same for a sum with the truth as a term: its noise is at least that of the truth."""
        actual, truth = self.actual, self.truth
        y, p, term = (of.ravel()[self.sample] for of in (actual, predicted, truth))
        if self._too_far(_units_of_sum(y, p, term, self.noise)):
            return False
        return self._better(_units_of_sum(actual, predicted, truth, self.noise), ...)

    def _better(self, z: np.ndarray, where: Any) -> bool:
        rest, before = np.abs(z), self.error[where]
        if not rest.size or rest.max() > _HONEST * self.tail:
            return False
        return _rms(before) > 1 and _rms(rest) <= min(_HONEST, _CLEARLY * _rms(before))

    def may_fit(self, source: np.ndarray) -> bool:
        """Check only whether actual[sample] could be truth[source]. source: flat indices, one for each sample"""
        return self._may_fit(self.truth.ravel()[source])

    def _may_fit(self, predicted: np.ndarray) -> bool:
        return not self._too_far(units(self.actual.ravel()[self.sample], predicted, self.noise))

    def _too_far(self, z: np.ndarray) -> bool:
        return bool(np.mean(np.abs(z) > _HONEST * self.tail) > 0.01)


def units(actual: np.ndarray, predicted: np.ndarray, noise: Noise) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.maximum(np.abs(actual), np.abs(predicted))
        z = (actual - predicted) / noise.of(np.where(np.isfinite(size), size, 0.0))
    z[np.isnan(z)] = _CLIP
    return np.clip(z, -_CLIP, _CLIP)


def _units_of_sum(actual: np.ndarray, predicted: np.ndarray, term: np.ndarray, noise: Noise) -> np.ndarray:
    size = np.maximum(np.maximum(np.abs(actual), np.abs(predicted)), np.abs(term))
    return (actual - predicted) / noise.of(size)


def _rms(z: np.ndarray) -> float:
    return math.sqrt(float(np.mean(z * z))) if z.size else 0.0
