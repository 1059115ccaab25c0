"""Run every case on every engine and judge the answers against the truth."""

import datetime
import fnmatch
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import msgspec

from refsd.golden import verdict
from refsd.golden.case import Case
from refsd.golden.cause_kinds import kinds
from refsd.golden.engine import (
    Engine,
    EngineDied,
    EngineFailure,
    FusingEngine,
    NotJudged,
    PartialEngine,
    ServingEngine,
    TappedEngine,
)
from refsd.golden.examination import Examination, examine, explain
from refsd.golden.explanation import Explanation
from refsd.golden.forcing import wrong_alone
from refsd.golden.fusions import wrong_fusion
from refsd.golden.judge import Answer, Inputs, Judge, Judges, Standard
from refsd.golden.repeated_requests import LEFT_OVER, asked_last, causes_of_changes, changes, conforms_alone, copied
from refsd.golden.report import NOT_SOUGHT, RIGHT, UNSEEN, WRONG, Result, Step
from refsd.golden.search_cuts import SearchMemory, remembering
from refsd.golden.unwritten_memory import foreign_outputs
from refsd.golden.waivers import Waiver, apply, waive
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import Deviation
from refsd.numerics.printable import printable
from refsd.numerics.profiles import FLOAT64, Numerics

# Keep the metrics of at most this many wrong taps.
_TAPS = 20
# The Result fields that a search without a cause leaves, emptied where the cause is found otherwise.
_UNSOUGHT: dict[str, Any] = {"looks": (), "nearest": None, "possible": (), "cut": ""}


class Answered(NamedTuple):
    """An engine's answer to a case, and its measurements."""

    engine: str
    standard: Standard
    actual: Answer
    taps: Answer
    examined: Examination


class Runner(NamedTuple):
    """How to run and judge cases.

    judges:   the kinds of case
    truths:   case -> its stored answer
    waivers:  accepted failures; today: the day on which these must be valid
    measured: called with every measured answer
    keep:     called with a result that does not conform and its answer -> the result to report
    wanted:   engine, case -> whether to run this pair
    taps:     a glob of the taps to judge; models of full size are asked for taps only where it is not "*"
    explains: whether to search for the cause of a failure
    twice:    whether to ask every case again whose answer conforms, and fail it if the answer changes
    waiting:  engine, case -> a context for one request of the engine
    itself:   names of engines that are the reference itself: their answer is the honest run, and computed once
    memory:   engine, operation -> what its failing cases have told, if this run keeps it
    """

    judges: Judges
    truths: Callable[[Case], Answer]
    waivers: Sequence[Waiver] = ()
    today: datetime.date | None = None
    measured: Callable[[Answered], None] = lambda answered: None
    keep: Callable[[Result, Answered], Result] = lambda result, answered: result
    wanted: Callable[[str, str], bool] = lambda engine, case: True
    taps: str = "*"
    explains: bool = True
    twice: bool = False
    waiting: Callable[[Engine, Case], AbstractContextManager] = lambda engine, case: nullcontext()
    itself: Collection[str] = ()
    memory: Callable[[str, str], SearchMemory | None] = lambda engine, op: None


def run(
    runner: Runner,
    engines: Sequence[Engine],
    cases: Sequence[Case],
    done: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Judge every engine on every case, case by case, so that engines share the honest runs.

    An engine that answers all cases in one process gets its first answered case once more at the end. Once six
    failing cases of an operation have told nothing new, the causes of others are sought by what explained those.
    """
    results: list[Result] = []
    first: dict[str, Answered] = {}
    measured = runner.measured

    def note_first(answered: Answered) -> None:
        first.setdefault(answered.engine, answered)
        measured(answered)

    memories: dict[tuple[str, str], SearchMemory] = defaultdict(SearchMemory)
    runner = runner._replace(measured=note_first, memory=lambda engine, op: memories[engine, op])
    for case in cases:
        wanted = [engine for engine in engines if runner.wanted(engine.name, case.name)]
        willing = [engine for engine in wanted if engine.refuses(case) is None]
        # Before anything is computed here: the process that makes goldens has then compiled what both need.
        truth = runner.truths(case) if willing else {}
        inputs = case.realize() if willing else {}
        honest = _Honest(runner.judges.of(case), case, inputs)
        for engine in wanted:
            refusal = engine.refuses(case)
            if refusal is not None:
                result = Result(engine.name, case.name, case.op, verdict.REFUSED, reason=refusal)
            else:
                result = _ask(runner, engine, truth, honest)
            done(result)
            results.append(result)
    for engine in engines:
        if isinstance(engine, ServingEngine) and engine.name in first and len(cases) > 1:
            case = first[engine.name].standard.case.name
            i = next(i for i, r in enumerate(results) if (r.engine, r.case) == (engine.name, case))
            results[i] = after_asking_again(runner, engine, first[engine.name], results[i])
    return results


def after_asking_again(runner: Runner, engine: ServingEngine, first: Answered, result: Result) -> Result:
    """Ask an engine's first case again -> its result; a failure if it conformed and the answer has changed."""
    if not result.conforms:
        return result
    judge = runner.judges.of(first.standard.case)
    reason, causes = asked_last(engine, judge, first.standard, first.actual, first.examined.outputs)
    if not reason:
        return result
    changed = {"status": verdict.FAIL, "margin": verdict.INFINITE, "criterion": "output", "reason": reason}
    return with_waivers(runner, msgspec.structs.replace(result, **changed, **_UNSOUGHT, causes=causes))


class _Honest:
    """The reference's answers to one case, one for each of the numerics and deviations that engines declare."""

    def __init__(self, judge: Judge, case: Case, inputs: Inputs):
        self.judge, self.case, self.inputs = judge, case, inputs
        self._answers: list[tuple[Numerics, tuple[Deviation, ...], Answer]] = []

    def __call__(self, numerics: Numerics, deviations: tuple[Deviation, ...] = ()) -> Answer:
        for known, with_deviations, answer in self._answers:
            if known == numerics and with_deviations == deviations:
                return answer
        answer = self.judge.answer(self.case, self.inputs, Arithmetic(numerics, deviations))
        self._answers.append((numerics, deviations, answer))
        return answer

    def know(self, numerics: Numerics, answer: Answer) -> None:
        """Take an answer that the reference has given as an engine."""
        self._answers.append((numerics, (), answer))


def _ask(runner: Runner, engine: Engine, truth: Answer, honest: _Honest) -> Result:
    case, inputs = honest.case, honest.inputs

    def result(status: str, **rest) -> Result:
        return with_waivers(runner, Result(engine.name, case.name, case.op, status, **rest))

    handed = copied(inputs)
    judge = honest.judge
    begun = time.perf_counter()
    try:
        with runner.waiting(engine, case):
            if isinstance(engine, TappedEngine) and (judge.asks_for_taps(case) or runner.taps != "*"):
                actual, taps = engine.run_tapped(case, handed)
                taps = {name: y for name, y in taps.items() if fnmatch.fnmatchcase(name, runner.taps)}
            else:
                actual, taps = engine.run(case, handed), {}
        fused = None
        if taps and isinstance(engine, FusingEngine):
            with runner.waiting(engine, case):
                fused = engine.run(case, handed)
        seconds = time.perf_counter() - begun
        numerics = engine.numerics(case)
        declared = tuple(engine.deviations(case))
    except NotJudged as error:
        return result(verdict.REFUSED, reason=f"not judged: {error}")
    except EngineFailure as error:
        log = error.log if isinstance(error, EngineDied) else ()
        return result(verdict.ERROR, margin=verdict.INFINITE, reason=_line(error), log=log)
    except Exception as error:  # a fault in one adapter must not stop the other engines
        return result(verdict.ERROR, margin=verdict.INFINITE, reason=f"{type(error).__name__}: {_line(error)}")
    rest = {"numerics": numerics.name, "seconds": seconds}
    own = handed if handed is not inputs else ()
    spoiled = [name for name in own if handed[name].data.tobytes() != inputs[name].data.tobytes()]
    if spoiled:
        reason = f"the engine wrote into its inputs: {', '.join(spoiled)}"
        return result(verdict.FAIL, margin=verdict.INFINITE, criterion="output", reason=reason, **rest)
    if engine.name in runner.itself:
        honest.know(numerics, actual)
    try:
        near = honest(numerics)
    except Exception as error:  # declared numerics may not fit the case
        reason = f"the reference cannot compute it under {numerics.name}: {type(error).__name__}: {_line(error)}"
        return result(verdict.ERROR, margin=verdict.INFINITE, reason=reason, **rest)
    if taps and isinstance(engine, PartialEngine):
        truth = {name: y for name, y in truth.items() if name in actual}
    standard = Standard(case, inputs, truth, near, numerics)
    examined = examine(judge, standard, actual, taps)
    tapped: list[str] = []  # the taps that hide an error
    if fused is not None and examined.verdict.passed:
        without_taps = examine(judge, standard, fused, {})
        if not without_taps.verdict.passed:
            actual, taps, examined, tapped = fused, {}, without_taps, [m.output for m in examined.trace.taps]
    answered = Answered(engine.name, standard, actual, taps, examined)
    runner.measured(answered)
    judged = examined.verdict
    if judged.criterion == verdict.NO_WITNESS:
        return result(verdict.REFUSED, reason=judged.reason, **rest)
    rest |= {"outputs": examined.outputs, "margin": judged.margin, "criterion": judged.criterion}
    gap = engine.gap if isinstance(engine, PartialEngine) else ""
    if judged.passed and gap and len(truth) < len(near):
        failed = {"margin": verdict.INFINITE, "criterion": "output"}
        return result(verdict.FAIL, reason=gap, **{**rest, **failed})
    if judged.passed:
        changed = _changed(runner, engine, judge, answered) if runner.twice else {}
        return result(verdict.FAIL if changed else verdict.PASS, **{**rest, **changed})
    wrong = {*examined.wrong[:_TAPS]}
    unnamed = gap and examined.hidden_before(examined.place)[1]  # what the dump may have under a name of its own
    rest |= {"place": f"at or before {examined.place}" if unnamed else examined.place, "way": _way(examined)}
    rest |= {"taps": [m for m in examined.trace.taps if m.output in wrong]}
    explaining = _explain(standard, actual, taps, honest, declared)
    if not (explaining or runner.explains):
        reason = "; ".join(filter(None, [judged.reason, examined.way]))
        failed = result(verdict.FAIL, reason=reason, cut=NOT_SOUGHT, **rest)
        return failed if failed.conforms else runner.keep(failed, answered)
    if explaining:
        names = tuple(d.name for d in explaining)
        waived, waiver_text = apply(runner.waivers, names, engine.name, case.name, today_of(runner))
        reason = "; ".join([*(f"{d.name}: {d.what}" for d in explaining), *([waiver_text] if waiver_text else [])])
        outcome = result(verdict.WAIVED if waived else verdict.DEVIATES, reason=reason, deviations=names, **rest)
    else:
        causes = _of_requests(runner, engine, judge, answered)
        if causes is None:
            with remembering(runner.memory(engine.name, case.op)):
                causes = _causes(judge, standard, actual, taps, examined)
            again = [wrong_alone(engine, judge, standard, taps), wrong_fusion(engine, judge, standard, tapped), gap]
            causes["reason"] = "; ".join(filter(None, [causes["reason"], *again]))
        outcome = result(verdict.FAIL, **rest, **causes)
    return outcome if outcome.conforms else runner.keep(outcome, answered)


def _changed(runner: Runner, engine: Engine, judge: Judge, answered: Answered) -> dict[str, Any]:
    """Ask a case that conforms again -> the Result fields if its answer changes."""
    _, standard, actual, taps, examined = answered
    if engine.name in runner.itself:
        return {}
    with runner.waiting(engine, standard.case):
        change = changes(engine, judge, standard, {**taps, **actual}, bool(taps), examined, times=2)
    if not change:
        return {}
    causes = causes_of_changes(engine, judge, standard, bool(taps))
    return {"margin": verdict.INFINITE, "criterion": "output", "reason": change, "causes": causes}


def _of_requests(runner: Runner, engine: Engine, judge: Judge, answered: Answered) -> dict[str, Any] | None:
    """Repeat a failing request -> the Result fields if how it is asked explains the failure; else None."""
    _, standard, actual, taps, examined = answered
    if engine.name in runner.itself:
        return None
    reason, tapped = examined.verdict.reason, bool(taps)
    change = changes(engine, judge, standard, {**taps, **actual}, tapped, examined)
    if change:
        causes = causes_of_changes(engine, judge, standard, tapped)
        causes += foreign_outputs(actual, standard.truth, standard.honest)
        alone = f"asked alone, in a process of its own, the engine conforms each time: {LEFT_OVER}"
        return {"reason": f"{change}; {reason}" + (f"; {alone}" if LEFT_OVER in causes else ""), "causes": causes}
    if isinstance(engine, ServingEngine) and conforms_alone(engine, judge, standard, tapped):
        alone = f"asked alone, in a process of its own, the engine conforms: {LEFT_OVER}"
        return {"reason": f"{reason}; {alone}", "causes": (LEFT_OVER,)}
    return None


def _causes(
    judge: Judge, standard: Standard, actual: Answer, taps: Answer, examined: Examination
) -> dict[str, Any]:
    """Return the Result fields that say why an answer fails. An exception in the search keeps the verdict."""
    try:
        why = explain(judge, standard, actual, taps, examined)
    except Exception as error:
        why = Explanation(looks=[f"the search for a cause failed: {type(error).__name__}: {_line(error)}"])
    reason = "; ".join(filter(None, [examined.verdict.reason, examined.way, why.text]))
    found_by_search = {"causes": tuple(why.causes), "possible": tuple(why.possible), "looks": tuple(why.looks)}
    return {"reason": reason, **found_by_search, "nearest": why.nearest, "cut": why.cut}


def _way(examined: Examination) -> list[Step]:
    wrong, unseen = {*examined.wrong}, {*examined.unseen}
    if not wrong:
        return []
    return [
        Step(
            m.output,
            WRONG if m.output in wrong else UNSEEN if m.output in unseen else RIGHT,
            verdict.judge_output(m).margin,
        )
        for m in examined.trace.taps
    ]


def with_waivers(runner: Runner, result: Result) -> Result:
    """Return the result with its case's waivers applied; the reason names the valid or the expired waiver."""
    if result.conforms:
        return result
    waived, waiver_text = waive(runner.waivers, result, today_of(runner))
    reason = "; ".join(filter(None, [result.reason, waiver_text]))
    status = verdict.WAIVED if waived else result.status
    return msgspec.structs.replace(result, status=status, reason=reason)


def with_shared_causes(runner: Runner, results: Sequence[Result]) -> list[Result]:
    """Give a failure the causes of other failures of its engine and operation that may explain it, too.

    One that has a cause gets them beside its own: what most failures share then leads (`shared_causes_first`).
    """
    known: dict[tuple[str, str], Counter[str]] = {}
    known_kinds: dict[tuple[str, str], Counter[str]] = {}
    for r in results:
        known.setdefault((r.engine, r.op), Counter()).update(r.causes)
        known_kinds.setdefault((r.engine, r.op), Counter()).update({k for cause in r.causes for k in kinds(cause)})
    shared = []
    for r in results:
        causes = tuple(cause for cause, _ in known[r.engine, r.op].most_common() if cause in r.possible)
        if r.causes and r.possible:
            counts = known_kinds[r.engine, r.op]
            both = (*r.causes, *(one for one in r.possible if any(counts[kind] for kind in kinds(one))))
            reason = r.reason.replace(Explanation(r.causes).text, Explanation(both).text)
            r = msgspec.structs.replace(r, causes=both, reason=reason, possible=())
        elif causes and r.status == verdict.FAIL and not r.causes:
            _, waiver_text = waive(runner.waivers, r, today_of(runner))
            text = Explanation(looks=r.looks, nearest=r.nearest, cut=r.cut).text
            without = r.reason.removesuffix(f"; {waiver_text}")
            without = without.partition(f"; {text}")[0] if text else without
            reason = f"{without}; consistent with {causes[0]!r}, the cause of other failing cases of {r.op}"
            r = with_waivers(runner, msgspec.structs.replace(r, **_UNSOUGHT, causes=causes, reason=reason))
        shared.append(r)
    return shared


def today_of(runner: Runner) -> datetime.date:
    return runner.today or datetime.date.today()


def _explain(
    standard: Standard, actual: Answer, taps: Answer, honest: _Honest, declared: tuple[Deviation, ...]
) -> tuple[Deviation, ...]:
    """Return the declared deviation, or else all of them, that make the reference agree; else ()."""
    attempts = [(d,) for d in declared] + ([declared] if len(declared) > 1 else [])
    for attempt in attempts:
        truth, near = honest(FLOAT64, attempt), honest(standard.numerics, attempt)
        deviating = standard._replace(truth=truth, honest=near, deviations=attempt)
        if examine(honest.judge, deviating, actual, taps).verdict.passed:
            return attempt
    return ()


def _line(error: Exception) -> str:
    return printable(" ".join(str(error).split()), 500)
