"""refsd conform: judge engines against the goldens."""

import functools
from collections import Counter
from pathlib import Path

import typer

from refsd.cli.golden import CASES
from refsd.golden.wording import counted

# More engines make a table that no terminal shows well: then a line each, and the table in report.md.
_COLUMNS = 5
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
    from refsd.golden import report as pages
    from refsd.golden import waivers as waiving
    from refsd.golden.input_file import note_input
    from refsd.golden.output_file import Outputs, write_file
    from refsd.golden.shared_traits import shared_traits
    from refsd.judges import judges
    from refsd.progress import compile_progress

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

    write_file(report / "report.md", pages.markdown(outcome).encode())
    contents = {"--json": pages.encode(outcome), "--junit": pages.junit(outcome)}
    for flag, content in contents.items():
        for path in filter(None, reports[flag]):
            write_file(path, content)
    _print(outcome, report)
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


def _print(outcome, report: Path) -> None:
    from rich.console import Console

    from refsd.golden import report as pages
    from refsd.golden import verdict

    console = Console(emoji=False)
    say = functools.partial(console.print, markup=False, highlight=False, soft_wrap=True)
    console.print(pages.table(outcome) if len(outcome.engines) <= _COLUMNS else pages.summary(outcome))
    for name, version in outcome.engines.items():
        say(f"{name} {version}", style="dim")
    shown = pages.failures(outcome)
    for r in shown[:20]:
        say(f"{r.status:8} {r.engine}  {r.case}  margin {pages.margin_text(r.margin)}")
        say(f"         {r.reason}")
    if len(shown) > 20:
        say(f"... and {len(shown) - 20} more, in {report / 'report.md'}")
    for line in outcome.shared:
        say(line)
    for name in outcome.engines:
        for line in pages.refusals_in_short(outcome, name):
            say(line, style="dim")
    for line in outcome.shortage:
        say(f"too few: {line}")
    for engine in outcome.missing:
        say(f"not judged: {engine.name}: {engine.why}")
    ran = sum(r.status != verdict.REFUSED for r in outcome.results)
    bad = sum(not r.conforms for r in outcome.results)
    said = "conforms" if outcome.conforms and outcome.engines else "does not conform"
    answers = f"{counted(ran, 'answer')} of {counted(len(outcome.engines), 'engine')}, {bad} not conforming"
    say(f"{said}: {answers}; {report / 'report.md'}")
