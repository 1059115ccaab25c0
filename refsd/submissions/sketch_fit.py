"""Whether a sketch fits the metrics that are claimed of its output, now that the truth is known."""

import math
from collections.abc import Iterator

import numpy as np

from refsd.golden.metrics import INFINITE, Metrics
from refsd.submissions.sketch import SAMPLES, SIGNS, sample_places, sketch, weights

# 32 projections give the root of the mean square within this factor.
_FACTOR = 2.5
# Another BLAS moves the truth by 1e-13 of an element; every sum by that of its terms.
_MOVED = 1e-12


def misfits(key: str, actual: np.ndarray, m: Metrics, truth: np.ndarray, limit: np.ndarray | None) -> Iterator[str]:
    """Yield how a sketch contradicts an output's metrics, in a few words.

    key, actual: of the sketch; limit: of each element, None without a bound
    """
    places = sample_places(key, truth.size)
    if actual.shape != (2 + SIGNS + len(places),) or not np.isfinite(actual).all():
        yield f"the sketch has {actual.size} numbers, expected {2 + SIGNS + min(SAMPLES, truth.size)} finite ones"
        return
    e = m.engine
    if e is None or not truth.size or e.worst >= INFINITE or m.not_finite:
        return
    w = weights(truth, limit)
    unit = m.limit if limit is None else 1.0
    if not unit:
        return
    right = sketch(key, truth, truth, w)
    sums, samples = (actual[: 2 + SIGNS] - right.sums) / unit, actual[2 + SIGNS :]
    moved = _MOVED * float(np.abs(np.where(w > 0, truth * w, 0.0)).sum()) / unit
    n = truth.size
    for name, claimed, at in (("bias", e.bias, 0), ("gain", e.gain, 1)):
        if abs(sums[at] / n - claimed) > 1e-4 * e.rms + moved / n:
            yield f"{name} is {claimed:.4g}, the sketch gives {sums[at] / n:.4g}"
            return
    rms = math.sqrt(float(np.mean(sums[2:] ** 2)) / n)
    noise = moved / math.sqrt(n)
    if rms > _FACTOR * e.rms + noise or e.rms > _FACTOR * rms + noise:
        yield f"rms is {e.rms:.4g}, the sketch gives {rms:.4g}"
        return
    t, scale = truth.ravel()[places], w.ravel()[places]
    used = scale > 0
    z = np.abs(samples - t)[used] * scale[used] / unit
    room = e.worst * (1 + 1e-6) + _MOVED * np.abs(t[used]) * scale[used] / unit
    if (z > room).any():
        yield f"worst is {e.worst:.4g}, a sampled element has {z.max():.4g}"


def worst_element(m: Metrics, truth: np.ndarray, limit: np.ndarray | None) -> Iterator[str]:
    """Yield how the element that the metrics show differs from the truth's and the bound's."""
    if m.engine is None or not truth.size or not m.engine.at:
        return
    at = m.engine.at if truth.ndim else ()
    known = float(np.nan_to_num(truth[at], nan=INFINITE, posinf=INFINITE, neginf=-INFINITE))
    if abs(m.truth - known) > 1e-9 * abs(known) + 1e-30 + (0.0 if limit is None else 1e-3 * abs(m.limit)):
        yield f"truth at {list(at)} is {m.truth:.9g}, here {known:.9g}"
    elif limit is not None:
        allowed = float(np.minimum(limit[at], INFINITE))
        if abs(m.limit - allowed) > 1e-5 * allowed:
            yield f"the bound at {list(at)} is {m.limit:.6g}, here {allowed:.6g}"
