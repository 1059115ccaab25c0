"""refsd conform: judge engines against the goldens."""

from collections import Counter
from pathlib import Path

import typer

from refsd.cli.golden import CASES, DASK

_WAIVERS = Path("refsd-waivers.toml")
_ENGINES = typer.Argument(
    None,
    metavar="[ENGINE]...",
    help="gguf-py, torch[@DEVICE], ggml[:LIBRARY][@DEVICE], sdcpp[:SD_CLI][@DEVICE], exec:PROGRAM, "
    "dump:FOLDER[:PROFILE], a1111:URL, comfyui:URL, onnxruntime[@PROVIDER], onnx-reference, openvino, tvm, iree, "
    "tinygrad, refsd[:PROFILE]. None: all that are there. `refsd engines` lists devices.",
)
_GOLDEN = typer.Option("goldens", help="Store of goldens: a folder, a packed file, a URL; what it lacks is made.")
_JSON = typer.Option(None, help="Write the report with every metric as JSON here too.")
_JUNIT = typer.Option(None, help="Write JUnit XML here too.")
_REPORT = typer.Option(Path("refsd-report"), help="Folder for report.html, report.md, conform.json and junit.xml.")
_KEEP = typer.Option(
    None,
    help="Folder for the outputs of failing answers, beside the truth and the honest run; it is replaced.",
    show_default="failing/ in the report's folder",
)
_WAIVED = typer.Option(None, help=f"Accepted deviations and cases; {_WAIVERS} if it is there.")
_BASELINE = typer.Option(None, help="An earlier conform.json: only what did not fail there fails the run.")
_LAST_FAILED = typer.Option(False, "--last-failed", help="Judge only what failed in the report's folder.")
_TAPS = typer.Option(
    "*",
    "--taps",
    help="Judge only the taps whose name matches this glob, as 'input_blocks.1.*'. Models of full size are asked "
    "for theirs only with it.",
    show_default="all taps",
)
_PROFILE = typer.Option(
    None,
    help="Judge the cases of a profile, as 2026.11/sd15, and say whether it is met: `refsd corpus` lists them.",
)
_SUBMISSION = typer.Option(None, help="Write the run as one file that others verify: `refsd verify-submission`.")
_STATEMENT = typer.Option("", help="Your words in the submission: who, which build, how it was run.")
_DEVICE = typer.Option("", help="What the engines compute on, if they do not say so: 'RTX 4090'.")
_DRIVER = typer.Option("", help="Its driver, for the submission.")
_SHARD = typer.Option(None, metavar="K/N", help="Judge part K of N: for the jobs of a CI.")
_TABLE = typer.Option(False, "--table", help="Print the table of operations by engines, even where all conform.")
_MIN_CASES = typer.Option(None, min=0, help="Fail if an engine runs fewer cases than this.")


def register(app: typer.Typer) -> None:
    app.command()(conform)


def conform(
    context: typer.Context,
    engines: list[str] = _ENGINES,
    cases: list[str] = CASES,
    golden: str = _GOLDEN,
    json: Path = _JSON,
    junit: Path = _JUNIT,
    report: Path = _REPORT,
    keep: Path = _KEEP,
    waivers: Path = _WAIVED,
    baseline: Path = _BASELINE,
    last_failed: bool = _LAST_FAILED,
    min_cases: int = _MIN_CASES,
    taps: str = _TAPS,
    profile: str = _PROFILE,
    shard: str = _SHARD,
    submission: Path = _SUBMISSION,
    statement: str = _STATEMENT,
    device: str = _DEVICE,
    driver: str = _DRIVER,
    table: bool = _TABLE,
    dask: str = DASK,
) -> None:
    """Judge engines on every case, each under the numerics that it declares.

    The report begins with the verdict and the causes. report.html is a page to
    read offline, report.md fits the summary of a CI job, conform.json is what
    --baseline and `refsd diff` read. After Ctrl-C or SIGTERM the report holds what
    was judged until then, and says that it is partial. With --dask the workers of a
    cluster judge, each the engines that it has, and the report is the same.

    Exit code 0: all conform. 1: one does not, or ran too few cases. 2: bad usage or bad input. 130: interrupted.
    """
    import datetime

    from refsd import __version__
    from refsd.cli.ending import INTERRUPTED
    from refsd.cli.golden import answerable
    from refsd.cluster.workplace import workplace
    from refsd.corpus.met import unmet, verdict_of
    from refsd.engines import registry
    from refsd.engines.devices import device_of
    from refsd.engines.reference import Reference
    from refsd.golden import waivers as waiving
    from refsd.golden.conform import Runner
    from refsd.golden.input_file import note_input
    from refsd.golden.output_file import write_file
    from refsd.golden.report import Report
    from refsd.golden.shared_traits import shared_traits
    from refsd.golden.shortages import shortages
    from refsd.golden.usual_cases import notes
    from refsd.judges import judges
    from refsd.model_files import model_files, open_store
    from refsd.numerics.errors import BadInput
    from refsd.numerics.processor import cpu_features
    from refsd.reports import changes, files
    from refsd.reports.kept import keeper
    from refsd.reports.last_failed import LastFailed
    from refsd.reports.pictures import Pictures
    from refsd.reports.stored import read
    from refsd.reports.terminal import print_report
    from refsd.submissions.collect import Collector
    from refsd.submissions.packing import pack

    again = LastFailed.read(report / files.JSON, cases) if last_failed else None
    if profile and shard:
        raise BadInput("--shard beside --profile: a part of the cases does not meet a profile")
    asked = _part(_cases(cases, profile, again), shard)
    chosen = answerable(asked)
    if waivers is None and _WAIVERS.exists():
        waivers = _WAIVERS
    accepted = waiving.read(waivers) if waivers else []
    if dask is None:  # else each worker applies those of its own machine
        accepted = waiving.applicable(accepted, cpu_features())
    known = read(baseline) if baseline else None
    if dask is not None and submission is not None:
        raise BadInput("--submission beside --dask: a submission is of one machine; run it there without --dask")
    place = context.with_resource(workplace(dask, golden))
    groups, missing = place.find(engines, taps, chosen)
    found = _apart(groups)
    if again is not None:
        if not again.pairs:
            typer.echo(f"nothing failed in {again.path}, so nothing is judged")
            return
        groups = again.engines(groups)
        found = _apart(groups)
    for argument in engines or ():
        note_input(Path(registry.Argument.of(argument).path))
    whole = _whole(cases, profile, again)
    left_out = place.left_out(found, chosen) if whole else {}
    store = open_store(golden)
    paths = _outputs(report, json, junit, submission)

    def is_asked(engine, case) -> bool:
        return case.name not in left_out.get(engine.name, ()) and engine.refuses(case) is None

    judged = [case for case in chosen if any(is_asked(engine, case) for engine in found)]
    pictures = Pictures()
    with (
        place.truths(store, judged) as truth_of,
        keeper(keep or report / files.KEPT, str(keep) if keep else files.KEPT) as kept,
    ):

        def keep_tensors(result, answered):
            pictures.add(result, answered)
            return kept.keep(result, answered)

        runner = Runner(judges(model_files), truth_of, accepted, taps=taps)
        runner = runner._replace(itself=[engine.name for engine in found if type(engine) is Reference])
        collector = Collector(runner.judges, found)
        if submission is not None:
            runner = runner._replace(measured=collector.add)
        runner = runner._replace(
            keep=keep_tensors,
            wanted=again.wants if again is not None else lambda engine, case: case not in left_out.get(engine, ()),
        )
        total = len(again.pairs) if again is not None else len(found) * len(chosen)
        total -= sum(map(len, left_out.values()))
        results, partial = _judge(place, runner, found, chosen, again, total)
    names = {argument: [engine.name for engine in group] for argument, group in groups.items()}
    if not engines:
        names = {"every engine": [name for group in names.values() for name in group]}
    short = [] if partial else shortages(names, results, min_cases, whole and shard is None)
    versions = {engine.name: engine.version for engine in found}
    shared = shared_traits(results, {case.name: case for case in chosen})
    said = [*kept.notes, *notes(left_out)]
    outcome = Report(__version__, versions, missing, results, short, shared, partial, notes=said)
    outcome.date, outcome.profile = datetime.date.today().isoformat(), profile or ""
    outcome.devices = {engine.name: device or device_of(engine) for engine in found}
    if profile and not partial:
        outcome.shortage += unmet(outcome, [case.name for case in asked])
    if known is not None:
        outcome.baseline = changes.against(known, outcome, str(baseline))
    for name, form in files.FORMS.items():
        content = form(outcome, pictures.of)
        for path in paths[name]:
            write_file(path, content)
    if submission is not None and not partial:
        pack(submission, outcome, collector, accepted, statement, dict.fromkeys(versions, driver) if driver else {})
    print_report(outcome, report, table)
    _say_next(groups, results)
    if profile and not partial:
        for engine in outcome.engines:
            typer.echo(f"{engine} {verdict_of(outcome.of(engine), profile, [case.name for case in asked])}")
    if partial:
        raise typer.Exit(INTERRUPTED)
    if not outcome.conforms or not found:
        raise typer.Exit(1)


def _say_next(groups, results) -> None:
    """Print the command that reduces the first failure. groups: argument -> engines"""
    import shlex

    from refsd.golden import verdict
    from refsd.golden.engine import PartialEngine

    asked = {e.name: name for name, group in groups.items() for e in group if not isinstance(e, PartialEngine)}
    failing = next((r for r in results if r.status == verdict.FAIL and r.engine in asked), None)
    if failing is not None:
        typer.echo(f"next: refsd shrink {shlex.quote(asked[failing.engine])} {failing.case}")


def _cases(globs: list[str], profile: str | None, again) -> list:
    """Return the cases that are asked for. Raises BadInput for a profile beside --cases or --last-failed."""
    from refsd import cases as known
    from refsd.corpus.versions import profile_cases
    from refsd.numerics.errors import BadInput

    if profile is None:
        return again.cases(known.CASES) if again is not None else known.select(*globs)
    if globs != ["*"] or again is not None:
        raise BadInput("--profile names its cases itself: leave out --cases and --last-failed")
    return profile_cases(profile)


def _part(cases: list, shard: str | None) -> list:
    """The part "K/N" of the cases: every Nth, from the Kth on. Raises BadInput for another text."""
    from refsd.numerics.errors import BadInput

    if shard is None:
        return cases
    which, _, of = shard.partition("/")
    if not (which.isdecimal() and of.isdecimal() and 1 <= int(which) <= int(of)):
        raise BadInput(f"--shard {shard}: expected K/N with K from 1 to N, as 2/3")
    return cases[int(which) - 1 :: int(of)]


def _whole(globs: list[str], profile: str | None, again) -> bool:
    """True if the user names no cases. Without --shard each engine must then run as many as it did before."""
    return "*" in globs and profile is None and again is None


def _apart(groups) -> list:
    """Return the engines of all arguments; one that two arguments name, as "torch" and "torch-f16", comes once.

    groups: argument -> engines

    Raises BadInput if two engines have the same name.
    """
    from refsd.engines.registry import Argument
    from refsd.numerics.errors import BadInput

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


def _outputs(report: Path, json: Path | None, junit: Path | None, submission: Path | None) -> dict[str, list[Path]]:
    """List the files to write. -> report form -> paths. Raises BadInput if a path cannot be written."""
    from refsd.golden.output_file import Outputs
    from refsd.reports import files

    outputs, paths = Outputs(), {name: [report / name] for name in files.FORMS}
    flags = dict.fromkeys(files.FORMS, "--report") | {files.JSON: "--json", files.JUNIT: "--junit"}
    paths[files.JSON] += [json] if json is not None else []
    paths[files.JUNIT] += [junit] if junit is not None else []
    for name, places in paths.items():
        for path in places:
            outputs.add(flags[name], path)
    if submission is not None:
        outputs.add("--submission", submission)
    return paths


def _judge(place, runner, found, chosen, again, total: int):
    """Judge all cases. -> (results, how many answers were judged if the run was interrupted, otherwise "")"""
    from refsd.cli.ending import interruptible
    from refsd.cluster.spread import NoWorkers
    from refsd.model_files import trim_model_files
    from refsd.progress import compile_progress
    from refsd.step_progress import steps

    results = []
    try:
        with interruptible(), compile_progress(), steps("conform", total) as advance:

            def done(result) -> None:
                results.append(result)
                advance(f"{result.engine} {result.case}")
                trim_model_files()

            return place.judge(runner, found, chosen, done), ""
    except (KeyboardInterrupt, NoWorkers) as end:
        why = f"; {end}" if str(end) else ""
        partial = f"{len(results)} of {total} answers judged{why}"
        return [*results, *(again.left(results) if again is not None else ())], partial
