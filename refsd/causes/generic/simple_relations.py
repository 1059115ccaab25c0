"""Find one formula that turns the truth into the answer: a multiple, an offset, a sign, a limit, a coarser type."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import ml_dtypes
import numpy as np

from refsd.golden.evidence import Evidence

# A factor or offset must be this many standard errors from 1 or 0.
_SIGNIFICANT = 8.0
# Least elements for each number that is fitted.
_EACH = 8
_LEAST = 16
# The coarsest first.
_TYPES = {
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
_LIMITS = {float(ml_dtypes.finfo(dtype).max): name for name, dtype in _TYPES.items()}


class Relation(NamedTuple):
    """How an answer follows from the truth.

    phrase:    in words
    predicted: the answer that the relation gives
    """

    phrase: str
    predicted: np.ndarray


def formula(evidence: Evidence) -> Relation | None:
    """Try y = 0, y = |truth|, y = a truth, y = truth + b, y = a truth + b."""
    truth, actual = evidence.truth, evidence.actual
    if truth.size < _LEAST:
        return None
    weight = 1 / evidence.noise.of(np.maximum(np.abs(truth), np.abs(actual)))
    for relation in _signs(truth):
        if evidence.fits(relation.predicted):
            return relation
    for relation in _formulas(truth, actual, weight):
        if evidence.fits_sum(relation.predicted):
            return relation
    return None


def limited(evidence: Evidence) -> Relation | None:
    """Try the truth cut off at found's largest number, or infinite beyond the largest number of a type."""
    size = np.abs(evidence.actual)
    largest = float(size.max()) if evidence.finite else math.inf
    for limit in (largest,) if evidence.finite else _LIMITS:
        beyond = np.abs(evidence.truth) > limit
        # Any error may make one number the largest; a cut-off leaves several, exactly on the limit.
        if not limit or beyond.sum() < (1 if limit in _LIMITS else 4):
            continue
        cut = np.clip(evidence.truth, -limit, limit)
        if not evidence.finite:
            cut = np.where(beyond, np.copysign(np.inf, evidence.truth), evidence.truth)
        z = np.abs(evidence.z(np.where(np.isfinite(cut), cut, 0.0)))
        same = (cut == evidence.actual) if not evidence.finite else np.abs(evidence.actual) == limit
        if same[beyond].all() and (z[~beyond] <= 4 * evidence.tail).all():
            named = f", the largest {_LIMITS[limit]}" if limit in _LIMITS else ""
            verb = "cut off at" if evidence.finite else "infinite beyond"
            return Relation(f"the truth is {verb} {limit:.6g}{named}", cut)
    return None


def coarser(evidence: Evidence) -> Relation | None:
    """Find a smaller type that holds all values of found, but not those of the honest run."""
    actual, truth, honest = evidence.actual, evidence.truth, evidence.run
    if actual.size < 2 * _LEAST or not evidence.finite:
        return None
    for name, dtype in _TYPES.items():
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = truth.astype(dtype).astype(np.float64)
            on_grid = np.array_equal(actual.astype(dtype).astype(np.float64), actual)
            already = np.mean(honest.astype(dtype).astype(np.float64) == honest) > 0.5
        if not on_grid or already or np.unique(actual).size < _EACH:
            continue
        u = float(ml_dtypes.finfo(dtype).eps) / 2
        size = np.abs(truth)
        step = u * size + float(ml_dtypes.finfo(dtype).smallest_subnormal)
        if np.mean(actual == rounded) > 0.95 and (np.abs(actual - rounded) <= 4 * step).all():
            return Relation(f"it is the truth rounded to {name}", actual)
        roundings = math.sqrt(float(np.mean((actual - truth) ** 2) / np.mean((u * size) ** 2)))
        if roundings <= 64:
            phrase = f"its values are all {name} numbers, {roundings:.3g} roundings (RMS) from the truth"
            return Relation(phrase, actual)
    return None


def _formulas(truth: np.ndarray, actual: np.ndarray, weight: np.ndarray) -> Iterator[Relation]:
    """Fit a factor, an offset, and both; yield those clearly not 1 and 0."""
    # Fit found - truth in units of the noise: then the factor is 1 + a.
    t, one, e = truth * weight, weight, (actual - truth) * weight
    tt, t1, ones, te, e1 = (float((x * y).sum()) for x, y in ((t, t), (t, one), (one, one), (t, e), (e, one)))
    a = te / tt if tt > 0 else 0.0
    if abs(a) * math.sqrt(tt) >= _SIGNIFICANT:
        yield Relation(_factor(1 + a), truth + a * truth)
    b = e1 / ones
    if abs(b) * math.sqrt(ones) >= _SIGNIFICANT:
        yield Relation(_offset(b), truth + b)
    det = tt * ones - t1 * t1
    if det <= 1e-9 * tt * ones:
        return
    a, b = (te * ones - e1 * t1) / det, (e1 * tt - te * t1) / det
    # A factor 1 + a that is not clearly apart from 0 would mean that the answer does not depend on the truth.
    of_a, of_b = math.sqrt(det / ones), math.sqrt(det / tt)
    if min(abs(a) * of_a, abs(1 + a) * of_a, abs(b) * of_b) >= _SIGNIFICANT:
        yield Relation(_factor(1 + a) + _offset(b).removeprefix("y = truth"), truth + a * truth + b)


def _signs(truth: np.ndarray) -> Iterator[Relation]:
    """Yield formulas without numbers."""
    yield Relation("y = 0", np.zeros_like(truth))
    if (truth < 0).any():
        yield Relation("y = |truth|", np.abs(truth))
        yield Relation("y = max(truth, 0)", np.maximum(truth, 0))
    if (truth > 0).any():
        yield Relation("y = min(truth, 0)", np.minimum(truth, 0))


def _factor(a: float) -> str:
    """Format "y = 0.5 truth", with enough digits to differ from 1."""
    if abs(a + 1) < 1e-3:
        return "y = -truth"
    digits = 4 if abs(a - 1) > 0.1 else 4 - math.floor(math.log10(max(abs(a - 1), 1e-12)))
    return f"y = {a:.{digits}g} truth"


def _offset(b: float) -> str:
    return f"y = truth {'-' if b < 0 else '+'} {abs(b):.4g}"
