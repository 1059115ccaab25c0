"""Judge one output from its metrics alone: its elements, its statistics, and projections on known changes.

Truth is the float64 run, the honest run is the reference under the engine's declared numerics. The
engine's error may be a few times the honest run's; an engine more precise than it declares passes.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from refsd.golden.metrics import INFINITE, Errors, Metrics
from refsd.golden.wording import counted

# How many times the honest run's the statistics may be. Another order of sums changes the RMS less than that;
# an order of magnitude means another precision.
_FACTOR = 4.0

# Above this relative error the honest run is too far from the truth to judge against.
_FOREIGN = 0.5
NO_WITNESS = "honest"

PASS, FAIL, DEVIATES, WAIVED, REFUSED, ERROR = "pass", "fail", "deviates", "waived", "refused", "error"


class Criterion(NamedTuple):
    """One measured value and its limit.

    name:    "element", "rms", "bias", "gain", "channel", "tile", "projection"
    value:   that of the engine
    allowed: the largest value that passes
    """

    name: str
    value: float
    allowed: float

    @property
    def margin(self) -> float:
        """Return value / allowed: above 1 it fails."""
        if self.value == 0:
            return 0.0
        return min(self.value / self.allowed, INFINITE) if self.allowed > 0 else INFINITE


class Judgement(msgspec.Struct, frozen=True):
    """A verdict.

    passed:    whether the output, or the case, passes
    margin:    of the criterion that came nearest to its limit, or passed it furthest; above 1 it fails
    criterion: its name; "output" where an output is missing or not finite, NO_WITNESS where nothing can be judged
    reason:    one line; empty if passed
    """

    passed: bool
    margin: float
    criterion: str
    reason: str = ""


def criteria(m: Metrics) -> list[Criterion]:
    """Return every criterion that applies to an output of the right shape.

    element: max |z| <= 1 where z is in units of a bound; for a model, 4 times the honest run's, or 32 times its RMS
    rms, worst channel, worst tile: 4 times the honest run's, or what independent roundings give if that is more
    bias and gain: 4 times the honest run's, or a mean over `groups` independent errors if that is more
    projection: 8 standard errors, or 4 times the honest run's, or what float32 may lose (projections.py)
    """
    e, h, t = m.engine, m.honest, m.typical
    assert e is not None and h is not None and t is not None
    mean = max(h.rms, t.rms) / math.sqrt(m.groups)
    return [
        Criterion("element", e.worst, 1.0 if m.bounded else _FACTOR * max(h.worst, 8 * t.rms)),
        Criterion("rms", e.rms, _FACTOR * max(h.rms, t.rms)),
        Criterion("bias", abs(e.bias), _FACTOR * max(abs(h.bias), mean)),
        Criterion("gain", abs(e.gain), _FACTOR * max(abs(h.gain), mean)),
        Criterion("channel", e.channel, _FACTOR * max(h.channel, t.channel)),
        Criterion("tile", e.tile, _FACTOR * max(h.tile, t.tile)),
        *(Criterion("projection", abs(p.size), p.allowed) for p in m.along),
    ]


def allowed_l2(m: Metrics) -> float:
    """Return the relative L2 of an error with the largest RMS that is allowed; 0 for an output of another shape."""
    if m.engine is None or m.honest is None:
        return 0.0
    rms = next(c for c in criteria(m) if c.name == "rms")
    known = ((m.honest_relative_l2, m.honest.rms), (m.relative_l2, m.engine.rms))
    return next((l2 * rms.allowed / z for l2, z in known if z), 0.0)


def judge_output(m: Metrics) -> Judgement:
    """Judge one output."""
    if m.unwanted:
        return Judgement(False, INFINITE, "output", m.place or f"output {m.output!r}: not asked for")
    if m.found is None:
        return Judgement(False, INFINITE, "output", f"output {m.output!r} is missing")
    if m.found != m.shape:
        reason = f"output {m.output!r} has shape {list(m.found)}, expected {list(m.shape)}"
        reason += f"; {m.place}" if m.place else ""
        return Judgement(False, INFINITE, "output", reason)
    if m.whole:
        reason = f"output {m.output!r} is {m.whole}, expected floating-point numbers: it was cast, or is another"
        return Judgement(False, INFINITE, "output", reason)
    if m.overflowed:
        reason = (
            f"{m.output}: {counted(m.overflowed, 'element')} beyond the range of these numerics in the honest run "
            "too: nothing can be judged, for they are too narrow for the case"
        )
        return Judgement(False, INFINITE, NO_WITNESS, reason)
    if m.not_finite:
        place = list(m.not_finite_at)
        count = counted(m.not_finite, "element")
        reason = f"{m.output}: {count} not finite where the truth is, first at {place}"
        return Judgement(False, INFINITE, "output", reason)
    if not m.bounded and m.honest_relative_l2 > _FOREIGN:
        reason = (
            f"{m.output}: the honest run itself is {m.honest_relative_l2:.3g} of the truth away, so nothing can be "
            "judged: these numerics are too coarse for the case, or the golden is of other weights"
        )
        return Judgement(False, INFINITE, NO_WITNESS, reason)
    measured = criteria(m)
    # Report a wrong element rather than the statistics that it spoils.
    worst = measured[0] if measured[0].margin > 1 else max(measured, key=lambda c: c.margin)
    if worst.margin <= 1:
        return Judgement(True, worst.margin, worst.name)
    assert m.engine is not None
    return Judgement(False, worst.margin, worst.name, f"{m.output}: {_describe(worst, m, m.engine)}")


def judge(outputs: Iterable[Metrics]) -> Judgement:
    """Judge a case by its outputs, in the order of their computation.

    The verdict is that of the first output that fails, since it may spoil the rest; else of the first that cannot
    be judged; else of the one nearest to its limit. A case without outputs fails.
    """
    judged = [judge_output(m) for m in outputs]
    if not judged:
        return Judgement(False, INFINITE, "output", "no output")
    wrong = [j for j in judged if not j.passed]
    failing = [j for j in wrong if j.criterion != NO_WITNESS]
    return (failing or wrong or [max(judged, key=lambda j: j.margin)])[0]


def first_wrong(outputs: Iterable[Metrics]) -> str:
    """Return the name of the first output that fails, leaving out those that cannot be judged; "" if none does."""
    return next(
        (m.output for m in outputs for j in [judge_output(m)] if not j.passed and j.criterion != NO_WITNESS), ""
    )


def _told_apart(found: float, truth: float) -> str:
    """Format two numbers with the digits that tell them apart, six at least: "1.00000012, truth 1"."""
    digits = next((n for n in range(6, 18) if f"{found:.{n}g}" != f"{truth:.{n}g}"), 6)
    return f"{found:.{digits}g}, truth {truth:.{digits}g}"


def _describe(c: Criterion, m: Metrics, e: Errors) -> str:
    unit = "the bound" if m.bounded else "the honest run's RMS error"
    times = "beyond any bound" if c.margin >= INFINITE else f"{c.margin:.3g} times what is allowed"
    element = m.place or f"element {list(e.at)} is {_told_apart(m.found_value, m.truth)}"
    if m.place and c.name == "element" and m.limit == 0:
        return element
    match c.name:
        case "element" if m.place:
            largest = f"the largest error {m.error:.3g}, at {list(e.at)},"
            return f"{element}; {largest} is {times} ({unit} there: {m.limit:.3g})"
        case "element":
            return f"{element}: error {m.error:.3g} is {times} ({unit} there: {m.limit:.3g})"
        case "channel":
            return f"channel {e.channel_at} has RMS {c.value:.3g} of {unit}, {times}; {element}"
        case "tile":
            return f"the tile at {list(e.tile_at)} has RMS {c.value:.3g} of {unit}, {times}; {element}"
        case "projection":
            along = max(m.along, key=lambda p: abs(p.size) / p.allowed)
            return f"{along.phrase}, {times}"
        case _:
            return f"{c.name} is {c.value:.3g} of {unit}, {times}; {element}"
