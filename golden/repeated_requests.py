"""Repeat a request: an engine must give the same answer each time, and in a fresh process, up to rounding.

A failing request runs twice more, and with `conform --twice` every other once more; answers that change are a race,
or state that earlier requests leave behind. In engines that answer many requests in one process, a failing case
also runs alone, in a fresh process, and the first case that was answered runs again as the last.
"""

from collections.abc import Sequence

import numpy as np

from refsd.golden.engine import Engine, EngineFailure, ServingEngine, TappedEngine
from refsd.golden.examination import Examination, examine
from refsd.golden.judge import Answer, Inputs, Judge, Standard
from refsd.golden.metrics import Metrics
from refsd.golden.verdict import allowed_l2
from refsd.golden.wording import counted

CHANGING = "not the same answer twice"
LEFT_OVER = "earlier requests leave something behind in the process"
# Causes in how the engine answers requests: the reference cannot have them.
OF_REQUESTS = (CHANGING, LEFT_OVER)

# How often a failing request is asked in all, and how many fresh processes must agree before state is blamed.
_TIMES = 3
# Without a bound, an element has changed beyond this multiple of the allowed RMS error.
_FAR = 8.0


def changes(
    engine: Engine,
    judge: Judge,
    standard: Standard,
    first: Answer,
    tapped: bool,
    of: Examination,
    times: int = _TIMES,
) -> str:
    """Ask a request again and say in a phrase how its answer changes; "" if it does not.

    first: the first answer, outputs and taps together; tapped: whether taps were asked for
    of:    its measurements; times: how often it is asked in all
    """
    for _ in range(times - 1):
        try:
            answer = _ask(engine, standard, tapped)
        except EngineFailure as error:
            return f"{CHANGING}: asked again, it fails: {error}"
        change = _change(judge, standard, first, answer, [*of.trace.taps, *of.outputs])
        if change:
            return f"{CHANGING}: {change}"
    return ""


def asked_last(
    engine: ServingEngine, judge: Judge, standard: Standard, first: Answer, outputs: Sequence[Metrics]
) -> tuple[str, tuple[str, ...]]:
    """Run a case again as the last request -> (how its answer has changed, in a sentence; causes); ("", ()) if not.

    first: the first answer; outputs: its metrics
    """
    try:
        last = _ask(engine, standard, False)
    except EngineFailure as error:
        return f"asked again as the last request, it fails: {error}", (LEFT_OVER,)
    change = _change(judge, standard, first, last, outputs)
    if not change:
        return "", ()
    try:
        again = _change(judge, standard, last, _ask(engine, standard, False), outputs)
    except EngineFailure as error:
        again = f"asked once more, it fails: {error}"
    if again:
        return f"{CHANGING}: {again}", causes_of_changes(engine, judge, standard, False)
    return f"asked again as the last request of the process, {change}", (LEFT_OVER,)


def causes_of_changes(engine: Engine, judge: Judge, standard: Standard, tapped: bool) -> tuple[str, ...]:
    """Return the causes of an answer that changes.

    One is state left behind if fresh processes are right and alike, and the one that has answered is never right
    again: a race, too, may spare a few processes.
    """
    if not isinstance(engine, ServingEngine) or any(_right(engine, judge, standard) for _ in range(_TIMES)):
        return (CHANGING,)
    answers: list[Answer] = []
    for _ in range(_TIMES):
        answer, conforms = _ask_alone(engine, judge, standard, tapped)
        if not conforms or not _same_bits(answer, (answers or [answer])[0]):
            return (CHANGING,)
        answers.append(answer)
    return CHANGING, LEFT_OVER


def _right(engine: Engine, judge: Judge, standard: Standard) -> bool:
    """Ask again -> whether the answer conforms."""
    try:
        return examine(judge, standard, _ask(engine, standard, False), {}).verdict.passed
    except EngineFailure:
        return False


def conforms_alone(engine: ServingEngine, judge: Judge, standard: Standard, tapped: bool) -> bool:
    """Return True if the answer of a fresh process conforms."""
    return _ask_alone(engine, judge, standard, tapped)[1]


def _ask_alone(engine: ServingEngine, judge: Judge, standard: Standard, tapped: bool) -> tuple[Answer, bool]:
    """Ask a fresh process -> its answer, whether that conforms."""
    try:
        actual, taps = engine.run_alone(standard.case, copied(standard.inputs), tapped)
    except EngineFailure:
        return {}, False
    return {**taps, **actual}, examine(judge, standard, actual, taps).verdict.passed


def _ask(engine: Engine, standard: Standard, tapped: bool) -> Answer:
    """Return the outputs, with the taps if they are asked for. Raises EngineFailure for any failure."""
    inputs = copied(standard.inputs)
    try:
        if tapped and isinstance(engine, TappedEngine):
            actual, taps = engine.run_tapped(standard.case, inputs)
            return {**taps, **actual}
        return engine.run(standard.case, inputs)
    except EngineFailure:
        raise
    except Exception as error:  # a fault in one adapter must not stop the other engines
        raise EngineFailure(f"{type(error).__name__}: {error}") from error


def _change(judge: Judge, standard: Standard, one: Answer, other: Answer, measured: Sequence[Metrics]) -> str:
    """Say in a phrase in which elements an answer has changed by more than rounding; "" if in none.

    one: the answer before, maybe without the taps of the other; measured: its metrics
    """
    limits, metrics = judge.limits(standard), {m.output: m for m in measured}
    for name, before in one.items():
        now = other.get(name)
        if now is None or now.shape != before.shape:
            return f"{name} is {'missing' if now is None else f'now of the shape {list(now.shape)}'}"
        y, z = (np.atleast_1d(np.asarray(t, np.float64)) for t in (before, now))
        changed = _changed(y, z, limits.get(name), metrics.get(name))
        if changed.any():
            at = [int(i) for i in np.argwhere(changed)[0]]
            number = f"{int(changed.sum())} of {counted(y.size, 'element')} of {name}"
            return f"{number} differ, first at {at}: {y[*at]:.6g} before, {z[*at]:.6g} now"
    return ""


def _changed(y: np.ndarray, z: np.ndarray, limit: np.ndarray | None, m: Metrics | None) -> np.ndarray:
    """Return which elements differ by more than two honest answers may.

    limit: how far an honest element may be from the truth; without it, the allowed RMS error of `m` decides
    """
    unequal = ~((y == z) | (np.isnan(y) & np.isnan(z)))
    if not unequal.any():
        return unequal
    finite = np.isfinite(y) & np.isfinite(z)
    if limit is not None:
        far = 2 * np.atleast_1d(limit)
    else:
        size = min(_rms(y), _rms(z))
        rms = allowed_l2(m) * size if m is not None else 0.0
        together = _rms(np.where(finite, y - z, 0.0)) > 2 * rms
        far = 0.0 if together else _FAR * rms
    with np.errstate(invalid="ignore"):
        return unequal & (~finite | (np.abs(y - z) > far))


def _rms(y: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.where(np.isfinite(y), y, 0.0) ** 2))) if y.size else 0.0


def _same_bits(one: Answer, other: Answer) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(y, other[n], equal_nan=True) for n, y in one.items())


def copied(inputs: Inputs) -> Inputs:
    """Return tensors that an engine may write into. Those that are read where they are used stay as they are."""
    if not isinstance(inputs, dict):
        return inputs
    return {name: tensor._replace(data=tensor.data.copy()) for name, tensor in inputs.items()}
