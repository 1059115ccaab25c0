"""What metrics must have in common, whatever was measured, and with what the reference measures here."""

import math
from collections.abc import Iterator

import numpy as np

from refsd.golden.metrics import INFINITE, Errors, Metrics
from refsd.golden.projections import TIMES

# Rounding of a mean.
_LOOSE = 1 + 1e-6
# A bound is computed in float64 on any machine; an honest run's errors depend on the order of sums of its BLAS.
_BOUND = 1e-5
_HONEST = 3.0
_UNIT = 2.0


def contradictions(m: Metrics) -> Iterator[str]:
    """Yield what in an output's metrics contradicts itself, in a few words."""
    numbers = [m.error, m.truth, m.found_value, m.limit, m.relative_l2, m.honest_relative_l2]
    for errors in (m.engine, m.honest, m.typical):
        if errors is not None:
            numbers += [errors.worst, errors.rms, errors.bias, errors.gain, errors.channel, errors.tile]
    for p in m.along:
        numbers += [p.size, p.error, p.honest, p.least, p.times]
    if not all(math.isfinite(x) and abs(x) <= 2 * INFINITE for x in numbers):
        yield "a number beyond 1e30"
        return
    if min(m.relative_l2, m.honest_relative_l2, m.limit, m.not_finite, m.overflowed) < 0 or m.groups < 1:
        yield "a negative size"
    measured = m.found is not None and m.found == m.shape and not m.unwanted
    if measured != (m.engine is not None) or (m.engine is None) != (m.honest is None or m.typical is None):
        yield "errors of an output of another shape, or none of one that has it"
        return
    for whose, errors in (("engine", m.engine), ("honest run", m.honest), ("bound", m.typical)):
        if errors is not None and not _ordered(errors):
            yield f"the errors of the {whose} fit no array: rms {errors.rms:.3g}, worst {errors.worst:.3g}"
    if m.engine is not None and not _worst_fits(m, m.engine):
        yield f"the worst element: error {m.error:.3g}, limit {m.limit:.3g}, worst {m.engine.worst:.3g}"
    if any(p.times not in TIMES or p.error < 0 or p.least < 0 for p in m.along):
        yield "a projection with limits of its own"


def _ordered(e: Errors) -> bool:
    """Means do not exceed the root of the mean square, nor that the worst channel's, nor that the worst element."""
    tiny = 1e-12 * e.worst
    inside = max(abs(e.bias), abs(e.gain)) <= e.rms * _LOOSE + tiny
    parts = (e.channel, e.tile)
    return inside and all(e.rms <= part * _LOOSE + tiny and part <= e.worst * _LOOSE + tiny for part in parts)


def _worst_fits(m: Metrics, e: Errors) -> bool:
    if len(e.at) != max(len(m.shape), 1) and e.at != ():
        return False
    if m.shape and any(not 0 <= i < n for i, n in zip(e.at, m.shape, strict=False)):
        return False
    if m.not_finite or abs(m.limit) >= INFINITE or m.limit == 0 or e.worst >= INFINITE:
        return True
    close = 1e-6 * (abs(m.error) + 1e-9 * abs(m.truth))
    return abs(abs(m.error) / m.limit - e.worst) <= 1e-6 * e.worst and abs(
        m.found_value - m.truth - m.error
    ) <= max(close, 1e-9 * abs(m.truth))


def differences(m: Metrics, here: Metrics, whole: bool) -> Iterator[str]:
    """Yield how an output's metrics differ from those measured here, in a few words.

    here:  measured on the same outputs if `whole`, else on the honest run's: then only what no engine can change
    """
    if (m.shape, m.bounded) != (here.shape, here.bounded):
        yield f"shape {list(m.shape)}, here {list(here.shape)}"
        return
    if whole and (m.found, m.not_finite) != (here.found, here.not_finite):
        claimed, known = (f"{of.found} and {of.not_finite} elements not finite" for of in (m, here))
        yield f"shape {claimed}, the outputs have {known}"
        return
    if m.engine is None or here.engine is None or m.honest is None or here.honest is None:
        return
    if m.groups != here.groups:
        yield f"{m.groups} independent errors, here {here.groups}"
    yield from _honest_differs(m, here)
    if whole:
        yield from _engine_differs(m, here)


def _honest_differs(m: Metrics, here: Metrics) -> Iterator[str]:
    """The bound must be the same; the honest run's errors may be larger by a factor that other sums explain."""
    assert m.typical is not None and here.typical is not None and m.honest is not None and here.honest is not None
    if m.bounded:
        for name in ("rms", "channel", "tile"):
            claimed, known = getattr(m.typical, name), getattr(here.typical, name)
            if abs(claimed - known) > _BOUND * known:
                yield f"the bound's {name} is {claimed:.6g}, here {known:.6g}"
    elif not _near(m.limit, here.limit, _UNIT):
        yield f"the honest run's RMS error is {m.limit:.3g}, here {here.limit:.3g}"
    typical = here.typical
    mean = max(here.honest.rms, typical.rms) / math.sqrt(here.groups)
    for name, room in (("worst", 8 * typical.rms), ("rms", typical.rms), ("channel", typical.channel)):
        claimed, known = getattr(m.honest, name), getattr(here.honest, name)
        if claimed > _HONEST * max(known, room):
            yield f"the honest run's {name} is {claimed:.3g}, here {known:.3g}"
    if m.honest.tile > _HONEST * max(here.honest.tile, typical.tile):
        yield f"the honest run's tile is {m.honest.tile:.3g}, here {here.honest.tile:.3g}"
    for name in ("bias", "gain"):
        claimed, known = abs(getattr(m.honest, name)), abs(getattr(here.honest, name))
        if claimed > _HONEST * max(known, mean):
            yield f"the honest run's {name} is {claimed:.3g}, here {known:.3g}"


def _engine_differs(m: Metrics, here: Metrics) -> Iterator[str]:
    assert m.engine is not None and here.engine is not None
    ratio = 1.0 if m.bounded or not here.limit else m.limit / here.limit
    for name in ("worst", "rms", "bias", "gain", "channel", "tile"):
        claimed, known = getattr(m.engine, name) * ratio, getattr(here.engine, name)
        if abs(claimed - known) > 1e-3 * abs(known) + 1e-4 * max(here.engine.rms, 1e-3):
            yield f"{name} is {claimed:.4g}, the outputs in the file give {known:.4g}"
            return
    if not np.isclose(m.relative_l2, here.relative_l2, rtol=1e-3, atol=1e-10):
        yield f"the relative L2 is {m.relative_l2:.4g}, the outputs in the file give {here.relative_l2:.4g}"


def _near(claimed: float, known: float, factor: float) -> bool:
    return claimed <= factor * known and known <= factor * claimed
