"""refsd conform: judge engines against the goldens."""

from collections import Counter
from pathlib import Path

import typer

from refsd.cli.golden import CASES

_WAIVERS = Path("refsd-waivers.toml")
_ENGINES = typer.Argument(
    None,
    metavar="[ENGINE]...",
    help="gguf-py, torch, ggml[:LIBRARY], sdcpp[:SD_CLI], exec:PROGRAM, dump:FOLDER[:PROFILE], "
    "refsd[:PROFILE]. None: all that are there.",
)
_GOLDEN = typer.Option(Path("goldens"), help="Store of goldens; what it lacks is made.")
_JSON = typer.Option(None, help="Write the report with every metric as JSON here too.")
_JUNIT = typer.Option(None, help="Write JUnit XML here too.")
_REPORT = typer.Option(Path("refsd-report"), help="Folder for report.md, conform.json and junit.xml.")
_WAIVED = typer.Option(None, help=f"Accepted deviations; {_WAIVERS} if it is there.")
_MIN_CASES = typer.Option(None, min=0, help="Fail if an engine runs fewer cases than this.")


def register(app: typer.Typer) -> None:
    app.command()(conform)


def conform(
    engines: list[str] = _ENGINES,
    cases: list[str] = CASES,
    golden: Path = _GOLDEN,
    json: Path = _JSON,
    junit: Path = _JUNIT,
    report: Path = _REPORT,
    waivers: Path = _WAIVED,
    min_cases: int = _MIN_CASES,
) -> None:
    """Judge engines on every case, each under the numerics that it declares.

    Exit code 0: all conform. 1: one does not, or ran too few cases. 2: bad usage or bad input.
    """
    from refsd import __version__
    from refsd import cases as corpus
    from refsd.cli.golden import answerable, make_into
    from refsd.cli.model_files import model_files, open_store, trim_model_files
    from refsd.cli.steps import steps
    from refsd.golden import conform as conformance
    from refsd.golden import waivers as waiving
    from refsd.golden.input_file import note_input
    from refsd.golden.output_file import Outputs, write_file
    from refsd.golden.shared_traits import shared_traits
    from refsd.judges import judges
    from refsd.progress import compile_progress
    from refsd.reports.junit import junit as as_junit
    from refsd.reports.markdown import markdown
    from refsd.reports.stored import encode
    from refsd.reports.terminal import print_report

    chosen = answerable(corpus.select(*cases))
    if waivers is None and _WAIVERS.exists():
        waivers = _WAIVERS
    accepted = waiving.read(waivers) if waivers else []
    groups, missing = _find(engines)
    found = [engine for group in groups.values() for engine in group]
    for argument in engines or ():
        note_input(Path(argument.partition(":")[2]))
    store = open_store(golden)
    outputs = Outputs()
    outputs.add("--report", report / "report.md")
    reports = {"--json": [report / "conform.json", json], "--junit": [report / "junit.xml", junit]}
    for flag, paths in reports.items():
        for path in filter(None, paths):
            outputs.add(flag, path)
    make_into(store, chosen)
    runner = conformance.Runner(judges(model_files), lambda case: store.get(case.name).outputs, accepted)
    total = len(found) * len(chosen)
    with compile_progress(), steps("conform", total) as advance:

        def done(result) -> None:
            advance(f"{result.engine} {result.case}")
            trim_model_files()

        results = conformance.run(runner, found, chosen, done)
    names = {argument: [engine.name for engine in group] for argument, group in groups.items()}
    if not engines:
        names = {"every engine": [name for group in names.values() for name in group]}
    short = conformance.shortages(names, results, min_cases, "*" in cases)
    versions = {engine.name: engine.version for engine in found}
    shared = shared_traits(results, {case.name: case for case in chosen})
    outcome = conformance.Report(__version__, versions, missing, results, short, shared)

    write_file(report / "report.md", markdown(outcome).encode())
    contents = {"--json": encode(outcome), "--junit": as_junit(outcome)}
    for flag, content in contents.items():
        for path in filter(None, reports[flag]):
            write_file(path, content)
    print_report(outcome, report)
    if not outcome.conforms or not found:
        raise typer.Exit(1)


def _find(arguments: list[str] | None):
    """Argument -> its engines, and those that are not there. What is named must be: raises BadInput."""
    from refsd.cli.engines import reference_engine
    from refsd.cli.model_files import model_files
    from refsd.engines import registry
    from refsd.golden.conform import Missing
    from refsd.numerics.errors import BadInput

    groups, missing = {}, []
    for argument in arguments or ("refsd:float32", *registry.DEFAULT):
        if argument.partition(":")[0] == "refsd":
            groups[argument] = [reference_engine(argument.partition(":")[2] or "float32")]
            continue
        looked = registry.find(argument, model_files=model_files)
        groups[argument] = [one.engine for one in looked if one.engine is not None]
        missing += [Missing(one.name, one.why_not) for one in looked if one.engine is None]
        if arguments and not groups[argument]:
            raise BadInput(f"{argument} cannot be judged: {'; '.join(one.why_not for one in looked)}")
    names = Counter(engine.name for group in groups.values() for engine in group)
    for name, n in names.items():
        if n > 1:
            raise BadInput(f"{n} of the engines are called {name!r}: a report tells engines apart by their names")
    return groups, missing
