"""Judge engines against the goldens: assemble a run, judge, and report. `refsd conform` calls it."""

import datetime
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from refsd import __version__
from refsd import cases as known_cases
from refsd.adoption import folder as adopted
from refsd.cluster.spread import NoWorkers
from refsd.cluster.workplace import Here, OnCluster, workplace
from refsd.commands.interruption import interruptible
from refsd.commands.precise_sums import precise_sums
from refsd.commands.waiver_notes import waiver_notes
from refsd.corpus.met import unmet, verdict_of
from refsd.corpus.versions import profile_cases
from refsd.engines.devices import device_of
from refsd.engines.dump.engine import DumpEngine, give_names
from refsd.engines.registry import Argument
from refsd.golden import waivers as waiving
from refsd.golden.case import Case
from refsd.golden.conform import Answered, Runner, with_shared_causes
from refsd.golden.engine import PartialEngine
from refsd.golden.input_file import note_input
from refsd.golden.modest_declarations import modest_declarations
from refsd.golden.output_file import Outputs, write_file
from refsd.golden.report import Missing, Pair, Report, Result
from refsd.golden.shared_traits import shared_traits
from refsd.golden.shortages import shortages, unjudged
from refsd.golden.store import Store
from refsd.golden.usual_cases import notes
from refsd.golden.verdict import FAIL
from refsd.golden.waivers import Waiver
from refsd.goldens.judging import references, runner
from refsd.goldens.making import answerable
from refsd.numerics.errors import BadInput
from refsd.progress.steps import steps
from refsd.progress.waiting import waiting
from refsd.reports import changes, files
from refsd.reports.groups import shared_causes_first
from refsd.reports.kept import keeper
from refsd.reports.last_failed import LastFailed
from refsd.reports.pictures import Pictures
from refsd.reports.stored import read
from refsd.submissions.collect import Collector
from refsd.submissions.packing import pack
from refsd.weights.model_files import open_store, trim_model_files

WAIVERS = Path("refsd-waivers.toml")
# The store of goldens where none is named; a folder of an adopted graph has its own.
STORE = "goldens"


class ConformRequest(NamedTuple):
    """The options of `refsd conform`, by their names there. engines: arguments; none: all that are there"""

    engines: Sequence[str]
    cases: Sequence[str]
    golden: str
    report: Path
    json: Path | None = None
    junit: Path | None = None
    keep: Path | None = None
    waivers: Path | None = None
    baseline: Path | None = None
    last_failed: bool = False
    min_cases: int | None = None
    taps: str = "*"
    profile: str | None = None
    shard: str | None = None
    submission: Path | None = None
    statement: str = ""
    device: str = ""
    driver: str = ""
    dask: str | None = None
    processes: int | None = None
    timeout: float | None = None
    names: Sequence[str] = ()
    twice: bool = False
    causes: bool = True

    @property
    def names_no_cases(self) -> bool:
        """True if each engine must run all of its cases. Without --shard as many as it did before."""
        return "*" in self.cases and self.profile is None and not self.last_failed


class Engines(NamedTuple):
    """The engines of a run.

    groups:   argument -> its engines
    missing:  engines that are not there
    left_out: engine -> cases that it takes, and is asked only where the user names them
    """

    groups: Mapping[str, Sequence[Any]]
    missing: Sequence[Missing]
    left_out: Mapping[str, set[str]]

    @property
    def all(self) -> list[Any]:
        return engines_of(self.groups)


class Judged(NamedTuple):
    """The results of a run. partial: how many answers were judged if it was interrupted, otherwise "" """

    results: list[Result]
    partial: str
    pictures: Pictures
    collector: Collector
    notes: Sequence[str]


class Conformed(NamedTuple):
    """What a run ended with.

    arguments: engine -> the argument that names it, for commands that ask it again; engines of one process alone
    met:   a line an engine
    store: the folder of the goldens; "" if it is not on this machine
    """

    report: Report
    arguments: Mapping[str, str]
    met: Sequence[str]
    store: str


class NothingFailed(NamedTuple):
    """--last-failed where nothing failed. path: the earlier report"""

    path: Path


def conform(request: ConformRequest) -> Conformed | NothingFailed:
    """Judge engines on cases and write the reports. Raises BadInput for options that do not fit together."""
    names, folders = adopted.named(request.cases)
    if len(folders) == len(names) == 1 and request.golden == STORE:
        request = request._replace(golden=str(folders[0]))
    request = request._replace(cases=names)
    again = LastFailed.read(request.report / files.JSON, request.cases) if request.last_failed else None
    if request.profile and request.shard:
        raise BadInput("--shard beside --profile: a part of the cases does not meet a profile")
    cases = part_of(cases_of(request, again), request.shard)
    chosen = answerable(cases)
    waivers = request.waivers or (WAIVERS if WAIVERS.exists() else None)
    accepted = waiving.read(waivers) if waivers else []
    baseline = read(request.baseline) if request.baseline else None
    if request.dask is not None and request.processes is not None:
        raise BadInput("--processes beside --dask: the cluster's workers judge")
    if request.dask is not None and request.submission is not None:
        raise BadInput("--submission beside --dask: a submission is of one machine; run it there without --dask")
    if request.timeout is not None and (request.dask is not None or request.processes not in (None, 1)):
        raise BadInput("--timeout beside --dask or --processes: it limits engines of one process")
    if request.names and (request.dask is not None or request.processes not in (None, 1)):
        raise BadInput("--names beside --dask or --processes: dumps under your own names are judged in one process")
    alone = request.submission is not None or request.timeout is not None or bool(request.names)
    with workplace(request.dask, request.golden, 1 if alone else request.processes, request.timeout) as place:
        accepted = place.applicable(accepted)
        engines = find_engines(place, request, chosen, again)
        if again is not None and not again.pairs:
            return NothingFailed(again.path)
        store = open_store(request.golden)
        paths = outputs_of(request)
        judged = judge(place, store, request, engines, chosen, accepted, again)
    report = report_of(request, engines, cases, chosen, judged)
    if not judged.partial:
        whole = request.names_no_cases and request.shard is None
        report.notes += waiver_notes(accepted, report.results, [case.name for case in chosen], whole)
    if baseline is not None:
        report.baseline = changes.against(baseline, report, str(request.baseline))
    for name, form in files.FORMS.items():
        content = form(report, judged.pictures.of)
        for path in paths[name]:
            write_file(path, content)
    if request.submission is not None and not judged.partial:
        drivers = dict.fromkeys(report.engines, request.driver) if request.driver else {}
        pack(request.submission, report, judged.collector, accepted, request.statement, drivers)
    met = []
    if request.profile and not judged.partial:
        names = [case.name for case in cases]
        met = [f"{name} {verdict_of(report.of(name), request.profile, names)}" for name in report.engines]
    arguments = {}
    if not any(case.name.startswith(adopted.KIND) for case in chosen):  # which `refsd shrink` does not know
        groups = engines.groups.items()
        arguments = {e.name: name for name, group in groups for e in group if not isinstance(e, PartialEngine)}
    return Conformed(report, arguments, met, "" if store.origin is not None else request.golden)


def cases_of(request: ConformRequest, again: LastFailed | None) -> list[Case]:
    """Return the cases that are asked for. Raises BadInput for a profile beside --cases or --last-failed."""
    if request.profile is None:
        return again.cases(known_cases.CASES) if again is not None else known_cases.select(*request.cases)
    if [*request.cases] != ["*"] or again is not None:
        raise BadInput("--profile names its cases itself: leave out --cases and --last-failed")
    return profile_cases(request.profile)


def part_of(cases: list[Case], shard: str | None) -> list[Case]:
    """The part "K/N" of the cases: every Nth, from the Kth on. Raises BadInput for another text."""
    if shard is None:
        return cases
    which, _, of = shard.partition("/")
    if not (which.isdecimal() and of.isdecimal() and 1 <= int(which) <= int(of)):
        raise BadInput(f"--shard {shard}: expected K/N with K from 1 to N, as 2/3")
    return cases[int(which) - 1 :: int(of)]


def find_engines(
    place: Here | OnCluster, request: ConformRequest, chosen: Sequence[Case], again: LastFailed | None
) -> Engines:
    """Find the engines that are asked for. Raises BadInput if a named one is missing, and for two of one name."""
    groups, missing = place.find(request.engines or None, request.taps, chosen)
    found = engines_of(groups)
    if again is not None and again.pairs:
        groups = again.engines(groups)
        found = engines_of(groups)
    give_names([engine for engine in found if isinstance(engine, DumpEngine)], request.names)
    for argument in request.engines:
        note_input(Path(Argument.of(argument).path))
    return Engines(groups, missing, place.left_out(found, chosen) if request.names_no_cases else {})


def engines_of(groups: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Return the engines of all arguments; one that two arguments name, as "torch" and "torch-f16", comes once.

    groups: argument -> engines

    Raises BadInput if two engines have the same name.
    """
    engines, found_by = {}, {}
    for argument, group in groups.items():
        where = Argument.of(argument)[1:]
        for name, n in Counter(engine.name for engine in group).items():
            other, before = found_by.setdefault(name, (where, argument))
            if n > 1 or other != where:
                raise BadInput(
                    f"{'two' if n < 2 else n} of the engines are called {name!r} ({before}, {argument}): a report "
                    "tells engines apart by their names"
                )
        engines = {engine.name: engine for engine in group} | engines
    return [engines[name] for name in found_by]


def outputs_of(request: ConformRequest) -> dict[str, list[Path]]:
    """List the files to write. -> report form -> paths. Raises BadInput if a path cannot be written."""
    outputs, paths = Outputs(), {name: [request.report / name] for name in files.FORMS}
    flags = dict.fromkeys(files.FORMS, "--report") | {files.JSON: "--json", files.JUNIT: "--junit"}
    paths[files.JSON] += [request.json] if request.json is not None else []
    paths[files.JUNIT] += [request.junit] if request.junit is not None else []
    for name, places in paths.items():
        for path in places:
            outputs.add(flags[name], path)
    if request.submission is not None:
        outputs.add("--submission", request.submission)
    return paths


def judge(
    place: Here | OnCluster,
    store: Store,
    request: ConformRequest,
    engines: Engines,
    chosen: Sequence[Case],
    accepted: Sequence[Waiver],
    again: LastFailed | None,
) -> Judged:
    """Make the goldens that the store lacks, and judge every engine on every case."""
    found, left_out, pictures = engines.all, engines.left_out, Pictures()

    def is_asked(engine: Any, case: Case) -> bool:
        return case.name not in left_out.get(engine.name, ()) and engine.refuses(case) is None

    needed = [case for case in chosen if any(is_asked(engine, case) for engine in found)]
    folder = request.keep or request.report / files.KEPT
    with (
        place.truths(store, needed) as truth_of,
        keeper(folder, str(request.keep) if request.keep else files.KEPT) as kept,
    ):

        def keep_tensors(result: Result, answered: Answered) -> Result:
            pictures.add(result, answered)
            return kept.keep(result, answered)

        judging = runner(truth_of, accepted, request.taps)._replace(
            explains=request.causes,
            twice=request.twice,
            itself=references(found),
            keep=keep_tensors,
            wanted=again.wants if again is not None else lambda name, case: case not in left_out.get(name, ()),
        )
        collector = Collector(judging.judges, found)
        if request.submission is not None:
            judging = judging._replace(measured=collector.add)
        requested = {
            (engine.name, case.name)
            for engine in found
            for case in chosen
            if judging.wanted(engine.name, case.name) and engine.refuses(case) is None
        }
        results, partial = _judge_all(place, judging, found, chosen, again, requested)
    return Judged(results, partial, pictures, collector, [*kept.notes, *notes(left_out)])


def _judge_all(
    place: Here | OnCluster,
    judging: Runner,
    found: Sequence[Any],
    chosen: Sequence[Case],
    again: LastFailed | None,
    requested: Collection[Pair],  # of which no engine refuses its case
) -> tuple[list[Result], str]:
    """Judge with progress on stderr. -> (results, how many answers were judged if interrupted, otherwise "")"""
    results: list[Result] = []
    try:
        with interruptible(), steps("conform", len(requested)) as advance, ExitStack() as searching:

            def wait(engine: Any, case: Case) -> AbstractContextManager:
                what, limit = f"waiting for {engine.name}, {case.name}", getattr(engine, "timeout", None)
                return waiting(what, limit, hint=lambda: getattr(engine, "hint", ""), show=advance.show)

            def measure(answered: Answered) -> None:
                judging.measured(answered)
                if judging.explains and not answered.examined.verdict.passed:
                    advance.search()
                    what = f"searching for the cause of {answered.engine}, {answered.standard.case.name}"
                    searching.enter_context(waiting(what, show=advance.show))

            def done(result: Result) -> None:
                searching.close()
                results.append(result)
                if (result.engine, result.case) in requested:
                    advance(f"{result.engine} {result.case}")
                trim_model_files()

            watched = judging._replace(waiting=wait, measured=measure)
            judged = place.judge(watched, found, chosen, done)
            return with_shared_causes(judging._replace(waivers=place.of_every_machine(judging.waivers)), judged), ""
    except (KeyboardInterrupt, NoWorkers) as end:
        why = f"; {end}" if str(end) else ""
        ran = sum((result.engine, result.case) in requested for result in results)
        partial = f"{ran} of {len(requested)} answers judged{why}"
        return [*results, *(again.left(results) if again is not None else ())], partial


def report_of(
    request: ConformRequest, engines: Engines, requested: Sequence[Case], chosen: Sequence[Case], judged: Judged
) -> Report:
    """Assemble the report: what was judged, which engines ran too few cases, and what failures share."""
    found, results, partial = engines.all, shared_causes_first(judged.results), judged.partial
    names = {argument: [engine.name for engine in group] for argument, group in engines.groups.items()}
    if not request.engines:
        names = {"every engine": [name for group in names.values() for name in group]}
    whole = request.names_no_cases and request.shard is None
    short = [] if partial else shortages(names, results, request.min_cases, whole)
    silent, refused = _unjudged(request, engines, chosen, results) if not partial else ([], [])
    short += silent
    versions = {engine.name: engine.version for engine in found}
    shared = shared_traits(results, {case.name: case for case in chosen})
    argument_of = {engine.name: argument for argument, group in engines.groups.items() for engine in group}
    report = Report(__version__, versions, [*engines.missing], results, short, shared, partial)
    report.notes = [*refused, *judged.notes]
    report.notes += modest_declarations(results, argument_of) or precise_sums(results, argument_of)
    report.notes += _unsought(request, results, argument_of)
    report.date, report.profile = datetime.date.today().isoformat(), request.profile or ""
    report.devices = {engine.name: request.device or device_of(engine) for engine in found}
    if request.profile and not partial:
        report.shortage += unmet(report, [case.name for case in requested])
    return report


def _unsought(request: ConformRequest, results: Sequence[Result], argument_of: Mapping[str, str]) -> list[str]:
    """Say that causes were not searched for, and how to have one case's."""
    failed = next((result for result in results if result.status == FAIL), None)
    if request.causes or failed is None:
        return []
    again = shlex.join(("refsd", "conform", argument_of[failed.engine], "--cases", failed.case))
    return [f"--no-causes: what explains a failure was not searched for; of one case: {again}"]


def _unjudged(
    request: ConformRequest, engines: Engines, chosen: Sequence[Case], results: Sequence[Result]
) -> tuple[list[str], list[str]]:
    """Find operations of which an engine that the user named refused every case. -> see shortages.unjudged

    Of an argument that names several engines each has its own operations.
    """
    if not request.engines or request.shard is not None or request.last_failed:
        return [], []
    number, every = Counter(case.op for case in chosen), Counter(case.op for case in known_cases.CASES.values())
    whole = {op for op, n in number.items() if n == every[op] and request.min_cases != 0}
    named = {op for op in number if any(pattern.startswith(f"{op}/") for pattern in request.cases)}
    single = [group[0] for group in engines.groups.values() if len(group) == 1]
    return unjudged(single, results, whole, named)
