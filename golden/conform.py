"""Conformance: every case, put to every engine, judged against the truth."""

import datetime
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from refsd.golden import diagnose, verdict
from refsd.golden.bounds import Bound, bound
from refsd.golden.case import Case
from refsd.golden.deviations import Deviation
from refsd.golden.engines import Engine, EngineFailure
from refsd.golden.metrics import Metrics, measure, unwanted
from refsd.golden.numerics import FLOAT64, Numerics
from refsd.golden.operations import OPERATIONS
from refsd.golden.tensor import StoredTensor
from refsd.golden.waivers import Waiver, apply

# Makes the reference: numerics, deviations -> engine. Injected, for golden knows no model.
MakeReference = Callable[[Numerics, Sequence[Deviation]], Engine]
Answer = Mapping[str, np.ndarray]


class Judge(NamedTuple):
    """How an operation is judged that golden does not know itself; its outputs come in the order of computation.

    measure:  (case, inputs, found, truth, honest, numerics) -> metrics
    diagnose: (case, inputs, found, numerics) -> names of bugs under which the reference agrees with the engine
    """

    measure: Callable[..., list[Metrics]]
    diagnose: Callable[..., list[str]]


# Engine -> the cases of the whole corpus that it must run at least: fewer is a failure of the run itself.
FLOORS = {
    "gguf-py": 23,
    "refsd-float32": 450,
    "ggml": 240,
    "ggml-flash": 16,
    "ggml-direct": 30,
    "torch": 355,
}


class Result(msgspec.Struct, frozen=True):
    """
    status:     of verdict.py: pass, fail, deviates, waived, refused, error
    margin:     above 1 it fails; criterion: which gave it
    reason:     one line; empty for a pass
    deviations: those that explain the engine's answer
    outputs:    the metrics, from which the verdict can be given again
    seconds:    that the engine took
    """

    engine: str
    case: str
    op: str
    status: str
    numerics: str = ""
    margin: float = 0.0
    criterion: str = ""
    reason: str = ""
    deviations: tuple[str, ...] = ()
    outputs: list[Metrics] = []
    seconds: float = 0.0

    @property
    def conforms(self) -> bool:
        return self.status in (verdict.PASS, verdict.WAIVED, verdict.REFUSED)


class Missing(msgspec.Struct, frozen=True):
    """An engine that was not found, and how to get it."""

    name: str
    why: str


class Report(msgspec.Struct):
    """
    refsd:    version
    engines:  name -> version
    missing:  engines that were not found
    results:  one for each engine and case
    shortage: engines that ran fewer cases than they must, a line each
    """

    refsd: str
    engines: dict[str, str]
    missing: list[Missing]
    results: list[Result]
    shortage: list[str] = []

    @property
    def conforms(self) -> bool:
        return not self.shortage and all(r.conforms for r in self.results)

    def of(self, engine: str) -> list[Result]:
        return [r for r in self.results if r.engine == engine]


class Runner(NamedTuple):
    """
    reference: makes the reference
    truths:    the stored answer of a case
    waivers:   and the day on which they are looked at
    judges:    operation -> how it is judged; those that are not there as every operation
    causes:    of a model's case: inputs, what was found, numerics -> names of bugs under which the reference agrees
    """

    reference: MakeReference
    truths: Callable[[Case], Answer]
    waivers: Sequence[Waiver] = ()
    today: datetime.date | None = None
    judges: Mapping[str, Judge] = {}
    causes: Callable[..., list[str]] | None = None


def run(
    runner: Runner,
    engines: Sequence[Engine],
    cases: Sequence[Case],
    done: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Judge every engine on every case, case by case, so that engines share the honest runs."""
    results = []
    for case in cases:
        asked = [engine for engine in engines if engine.refuses(case) is None]
        inputs = case.realize() if asked else {}
        honest = _Honest(runner.reference, case, inputs)
        for engine in engines:
            refusal = engine.refuses(case)
            if refusal is not None:
                result = Result(engine.name, case.name, case.op, verdict.REFUSED, reason=refusal)
            else:
                result = _ask(runner, engine, case, inputs, honest)
            done(result)
            results.append(result)
    return results


class _Honest:
    """The reference's answers to one case under each of the numerics that engines declare."""

    def __init__(self, reference: MakeReference, case: Case, inputs: Mapping[str, StoredTensor]):
        self._reference, self._case, self._inputs = reference, case, inputs
        self._answers: list[tuple[Numerics, tuple[Deviation, ...], Answer]] = []

    def __call__(self, numerics: Numerics, deviations: tuple[Deviation, ...] = ()) -> Answer:
        for known, with_deviations, answer in self._answers:
            if known == numerics and with_deviations == deviations:
                return answer
        answer = self._reference(numerics, deviations).run(self._case, self._inputs)
        self._answers.append((numerics, deviations, answer))
        return answer


def _ask(runner: Runner, engine: Engine, case: Case, inputs: Mapping[str, StoredTensor], honest: _Honest) -> Result:
    def result(status: str, **rest) -> Result:
        return Result(engine.name, case.name, case.op, status, **rest)

    handed = {name: tensor._replace(data=tensor.data.copy()) for name, tensor in inputs.items()}
    begun = time.perf_counter()
    try:
        found = engine.run(case, handed)
        seconds = time.perf_counter() - begun
        numerics = engine.numerics(case)
        declared = tuple(engine.deviations(case))
    except EngineFailure as error:
        return result(verdict.ERROR, margin=verdict.INFINITE, reason=_line(error))
    except Exception as error:  # an adapter's fault is the engine's: the other engines go on
        return result(verdict.ERROR, margin=verdict.INFINITE, reason=f"{type(error).__name__}: {_line(error)}")
    rest = {"numerics": numerics.name, "seconds": seconds}
    spoiled = [name for name in inputs if handed[name].data.tobytes() != inputs[name].data.tobytes()]
    if spoiled:
        reason = f"the engine wrote into its inputs: {', '.join(spoiled)}"
        return result(verdict.FAIL, margin=verdict.INFINITE, criterion="output", reason=reason, **rest)
    special = runner.judges.get(case.op)
    measure_it, judge = (special.measure, verdict.judge_in_order) if special else (measure_case, verdict.judge)
    metrics = measure_it(case, inputs, found, runner.truths(case), honest(numerics), numerics)
    judged = judge(metrics)
    if judged.criterion == verdict.NO_WITNESS:
        return result(verdict.REFUSED, reason=judged.reason, **rest)
    rest |= {"outputs": metrics, "margin": judged.margin, "criterion": judged.criterion}
    if judged.passed:
        return result(verdict.PASS, **rest)
    explaining = () if special else _explain(case, inputs, found, honest, numerics, declared)
    if not explaining:
        named = causes(runner, case, inputs, found, honest(numerics), numerics)
        said = f"; the reference agrees if {' or '.join(named)}" if named else ""
        return result(verdict.FAIL, reason=judged.reason + said, **rest)
    names = tuple(d.name for d in explaining)
    waived, said = apply(runner.waivers, names, engine.name, case.name, runner.today or datetime.date.today())
    reason = "; ".join([*(f"{d.name}: {d.what}" for d in explaining), *([said] if said else [])])
    return result(verdict.WAIVED if waived else verdict.DEVIATES, reason=reason, deviations=names, **rest)


def causes(
    runner: Runner,
    case: Case,
    inputs: Mapping[str, StoredTensor],
    found: Answer,
    honest: Answer,
    numerics: Numerics,
) -> list[str]:
    """The known bugs under which the reference agrees with an engine that does not conform."""
    special = runner.judges.get(case.op)
    if special:
        return special.diagnose(case, inputs, found, numerics)
    if case.op in OPERATIONS:
        return diagnose.causes(case, inputs, found, runner.truths(case), honest, numerics)
    small = case.model is not None and case.model.tiny
    return runner.causes(case, inputs, found, numerics) if runner.causes and small else []


def _explain(
    case: Case,
    inputs: Mapping[str, StoredTensor],
    found: Answer,
    honest: _Honest,
    numerics: Numerics,
    declared: tuple[Deviation, ...],
) -> tuple[Deviation, ...]:
    """The fewest declared deviations under which the reference agrees with the engine; empty if none do."""
    attempts = [(d,) for d in declared] + ([declared] if len(declared) > 1 else [])
    for attempt in attempts:
        changed = _with(case, attempt)
        truth, near = honest(FLOAT64, attempt), honest(numerics, attempt)
        if verdict.judge(measure_case(changed, inputs, found, truth, near, numerics)).passed:
            return attempt
    return ()


def _with(case: Case, deviations: Iterable[Deviation]) -> Case:
    """The case with the parameters that the deviations replace, for its bound."""
    params = dict(case.params)
    known = OPERATIONS[case.op].params if case.op in OPERATIONS else {}
    for deviation in deviations:
        params |= {k: v for k, v in deviation.sets.items() if deviation.op == case.op and k in known}
    return msgspec.structs.replace(case, params=params)


def measure_case(
    case: Case,
    inputs: Mapping[str, StoredTensor],
    found: Answer,
    truth: Answer,
    honest: Answer,
    numerics: Numerics,
) -> list[Metrics]:
    """Measure every output of a case: those that the truth has, and those that it has not."""
    metrics = []
    for name, y in truth.items():
        channel = OPERATIONS[case.op].channel if case.op in OPERATIONS else (1 if y.ndim == 4 else -1)
        metrics.append(measure(name, found.get(name), y, honest[name], _bound(case, inputs, numerics, y), channel))
    return metrics + [unwanted(name, found[name]) for name in found.keys() - truth.keys()]


def _bound(case: Case, inputs: Mapping[str, StoredTensor], numerics: Numerics, truth: np.ndarray) -> Bound | None:
    if case.op not in OPERATIONS:
        return None
    return bound(case.op, numerics, inputs, case.params, truth)


def shortages(
    groups: Mapping[str, Sequence[str]], results: Iterable[Result], minimum: int | None, whole: bool
) -> list[str]:
    """Engines that ran too few cases, a line each.

    groups:  what was asked for ("ggml:/path") -> the engines that it gave; one of them must have run `minimum`
             cases, or any at all if that is None
    whole:   the whole corpus was asked, so that every engine must have run what FLOORS says
    """
    ran: Counter[str] = Counter(result.engine for result in results if result.status != verdict.REFUSED)
    lines = []
    for name, engines in groups.items():
        most = max((ran[engine] for engine in engines), default=0)
        least = 1 if minimum is None else minimum
        if most < least:
            lines.append(f"{name} ran {most} cases, expected at least {least}")
        for engine in engines:
            if whole and minimum is None and ran[engine] < FLOORS.get(engine, 0):
                lines.append(f"{engine} ran {ran[engine]} cases, expected at least {FLOORS[engine]}")
    return lines


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
