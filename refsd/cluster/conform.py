"""Judge engines on a cluster or in processes of this machine, a case a job: the results of golden/conform.py.

A worker keeps its engines from job to job. The truth comes from the store of goldens where the worker can read it
under the same path or URL, and travels with the job elsewhere. Failing answers come back with their results: this
process keeps and draws them, in the order of the cases.
"""

import datetime
import hashlib
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from refsd.cluster.engines import RemoteEngine
from refsd.cluster.processes import Processes
from refsd.cluster.spread import Job, Spread
from refsd.engines.chosen import look_for
from refsd.golden import conform, verdict
from refsd.golden.case import Case
from refsd.golden.conform import Answered, Runner
from refsd.golden.engine import Engine, ServingEngine
from refsd.golden.judge import Answer
from refsd.golden.report import Result
from refsd.golden.waivers import Waiver, applicable
from refsd.goldens.judging import references, runner
from refsd.goldens.making import truth_of
from refsd.numerics.errors import BadInput
from refsd.numerics.processor import cpu_features
from refsd.weights.model_files import open_store, trim_model_files
from refsd.weights.recipe_files import fingerprint


class Plan(NamedTuple):
    """What all jobs of a run have in common.

    run:       its name
    arguments: engine -> the argument that finds it
    store:     the goldens: an absolute path, or a URL
    """

    run: str
    arguments: dict[str, str]
    store: str
    waivers: Sequence[Waiver]
    today: datetime.date
    taps: str
    explains: bool = True
    twice: bool = False


class Judged(NamedTuple):
    """A result; if it fails, the answer, without its inputs."""

    result: Result
    answered: Answered | None = None


class _Run:
    """A worker's part of a run.

    first: engine -> the first case that it answered here, and its result
    """

    def __init__(self, plan: Plan):
        self.store = open_store(plan.store)
        self.first: dict[str, tuple[Answered, Result]] = {}
        self._plan = plan
        self._engines: dict[str, Engine] = {}
        waivers = applicable(plan.waivers, cpu_features())
        judging = runner(truth_of(self.store), waivers, plan.taps, plan.today)
        self._runner = judging._replace(explains=plan.explains, twice=plan.twice)

    def engine(self, name: str) -> Engine:
        """Return an engine of this worker; find it at the first call. Raises BadInput if it is not there."""
        if name not in self._engines:
            engines, missing = look_for(self._plan.arguments[name], self._plan.taps)
            self._engines |= {engine.name: engine for engine in engines}
            if name not in self._engines:
                raise BadInput(f"a worker lacks {name}: {'; '.join(one.why for one in missing)}")
        return self._engines[name]

    def judge(self, case: Case, names: Sequence[str], truth: Answer | None) -> list[Judged]:
        answers: dict[str, Answered] = {}
        failing: dict[str, Answered] = {}

        def keep(result: Result, answered: Answered) -> Result:
            failing[result.engine] = answered
            return result

        engines = [self.engine(name) for name in names]
        runner = self._runner._replace(keep=keep, measured=lambda a: answers.setdefault(a.engine, a))
        runner = runner._replace(itself=references(engines))
        if truth is not None:
            runner = runner._replace(truths=lambda case: truth)
        results = conform.run(runner, engines, [case])
        for result in results:
            if result.engine in answers:
                self.first.setdefault(result.engine, (answers[result.engine], result))
        return [Judged(result, _light(failing.get(result.engine))) for result in results]

    def ask_again(self) -> list[Result]:
        """Ask each serving engine its first case again -> the results that have changed."""
        self.store.sweep()
        results = [(conform.after_asking_again(self._runner, *of), of[2]) for of in self._serving()]
        return [again for again, before in results if again is not before]

    def _serving(self) -> Iterator[tuple[ServingEngine, Answered, Result]]:
        """The engines here that answered more than one case in one process, and the first of them."""
        for name, (answered, result) in self.first.items():
            engine = self._engines[name]
            if isinstance(engine, ServingEngine):
                yield engine, answered, result


# Of this worker's process. Engines and kernels are for one thread at a time, whatever threads the worker has.
_runs: dict[str, _Run] = {}
_RUNS = 4  # at most; a run that was interrupted does not end here
_one = threading.Lock()


def judge(plan: Plan, case: Case, names: Sequence[str], truth: Answer | None) -> list[Judged]:
    """Judge engines on one case: a job. truth: None: it is in the store"""
    with _one:
        if plan.run not in _runs:
            for interrupted in [*_runs][: 1 - _RUNS]:
                del _runs[interrupted]
            _runs[plan.run] = _Run(plan)
        judged = _runs[plan.run].judge(case, names, truth)
        trim_model_files()
        return judged


def ask_again(plan: Plan) -> list[Result]:
    """Ask the first case of each engine here again, and end the run on this worker -> results that have changed."""
    with _one:
        run = _runs.pop(plan.run, None)
        return [] if run is None else run.ask_again()


def sees(store: str, name: str, digest: str) -> bool:
    """True if this worker reads the same golden under the same path or URL."""
    try:
        return _digest(open_store(store).get(name).outputs) == digest
    except BadInput:
        return False


def _digest(answer: Answer) -> str:
    return hashlib.sha256(b"".join(answer[name].tobytes() for name in sorted(answer))).hexdigest()


def judge_on(
    spread: Spread | Processes,
    address: str,
    apart: Collection[str] | None,
    runner: Runner,
    engines: Sequence[RemoteEngine],
    cases: Sequence[Case],
    done: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Judge as golden.conform.run does; a case that ends its workers is an error of the engine.

    address: of the goldens, as the workers open them
    apart:   names of goldens that are not there, but here; None: the workers are processes of this machine, and
             make a golden that is not there
    """
    arguments = {engine.name: engine.argument for engine in engines}
    today, how = conform.today_of(runner), (runner.taps, runner.explains, runner.twice)
    plan = Plan(uuid.uuid4().hex, arguments, address, list(runner.waivers), today, *how)
    jobs = _Jobs(spread, plan, runner, engines, apart)
    order = {engine.name: i for i, engine in enumerate(engines)}

    def crashed(job: Job) -> list[Judged]:
        _, case, (name,), _ = job.arguments
        return [Judged(_crashed(runner, name, case))]

    results: list[Result] = []
    judged: list[Judged] = []
    for outcome in spread.run(judge, jobs.of(cases), crashed, _an_engine_each):
        judged += outcome
        # The next outcomes are of the same case until all its engines have answered.
        if len(judged) < jobs.answers[judged[0].result.case]:
            continue
        for result, answered in sorted(judged, key=lambda one: order[one.result.engine]):
            results.append(result if answered is None else runner.keep(result, answered))
            done(results[-1])
        judged = []
    changed = [one for of in spread.on_every_worker(ask_again, plan).values() for one in of]
    by_pair = {(one.engine, one.case): one for one in changed}
    return [by_pair.get((one.engine, one.case), one) for one in results]


class _Jobs:
    """
    answers: case -> how many engines answer it
    """

    def __init__(
        self,
        spread: Spread | Processes,
        plan: Plan,
        runner: Runner,
        engines: Sequence[RemoteEngine],
        apart: Collection[str] | None,
    ):
        self._spread, self._plan, self._runner, self._engines = spread, plan, runner, engines
        self._apart = apart
        self.answers: dict[str, int] = {}

    def of(self, cases: Sequence[Case]) -> Iterator[Job]:
        """Yield a case's engines in one job, so that they share the honest runs; one for each set of resources."""
        wanted = {case.name: [e for e in self._engines if self._runner.wanted(e.name, case.name)] for case in cases}
        needs_truth = {name for name, of in wanted.items() if any(name not in e.refused for e in of)}
        shared = self._shared([case for case in cases if case.name in needs_truth])
        for case in cases:
            self.answers[case.name] = len(wanted[case.name])
            groups: dict[tuple, list[str]] = {}
            for engine in wanted[case.name]:
                groups.setdefault(tuple(engine.needs.items()), []).append(engine.name)
            apart = (
                self._apart is not None and case.name in needs_truth and (case.name in self._apart or not shared)
            )
            truth = self._runner.truths(case) if apart else None
            kin = fingerprint(case.model) if case.model else case.op
            for needs, names in groups.items():
                yield Job((self._plan, case, names, truth), dict(needs), kin)

    def _shared(self, cases: Sequence[Case]) -> bool:
        """True if every worker reads the goldens that are there under the store's own address."""
        there = next((case for case in cases if case.name not in (self._apart or ())), None)
        if there is None or self._apart is None:
            return False
        digest = _digest(self._runner.truths(there))
        return all(self._spread.on_every_worker(sees, self._plan.store, there.name, digest).values())


def _an_engine_each(job: Job) -> list[Job]:
    plan, case, names, truth = job.arguments
    return [Job((plan, case, [name], truth), job.needs) for name in names]


def _crashed(runner: Runner, name: str, case: Case) -> Result:
    reason = "crashed: the process of every worker that asked it ended, also with nothing else to do"
    result = Result(name, case.name, case.op, verdict.ERROR, margin=verdict.INFINITE, reason=reason)
    here = runner._replace(waivers=applicable(runner.waivers, ()))  # on which CPU it crashed is not known
    return conform.with_waivers(here, result)


def _light(answered: Answered | None) -> Any:
    """An answer without the inputs, which nobody keeps."""
    return answered and answered._replace(standard=answered.standard._replace(inputs={}))
