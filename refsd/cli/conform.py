"""refsd conform: judge engines against the goldens."""

import functools
from pathlib import Path

import typer

# More engines make a table that no terminal shows well: then a line each, and the table in report.md.
_COLUMNS = 5
_WAIVERS = Path("refsd-waivers.toml")
_ENGINES = typer.Argument(
    None,
    metavar="[ENGINE]...",
    help="gguf-py, torch, ggml[:LIBRARY], sdcpp[:SD_CLI], exec:PROGRAM, refsd[:PROFILE]. None: all that are there.",
)
_CASES = typer.Option("*", help="Only cases whose names match this glob: 'conv2d/*', '*q4_k*'.")
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
    cases: str = _CASES,
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
    from refsd.cli.golden import make_into
    from refsd.cli.model_files import model_files, open_store
    from refsd.cli.steps import steps
    from refsd.engine import Reference
    from refsd.golden import cases as corpus
    from refsd.golden import conform as conformance
    from refsd.golden import report as pages
    from refsd.golden import waivers as waiving
    from refsd.progress import compile_progress
    from refsd.trajectory import JUDGES

    chosen = corpus.select(cases)
    if waivers is None and _WAIVERS.exists():
        waivers = _WAIVERS
    accepted = waiving.read(waivers) if waivers else []
    groups, missing = _find(engines)
    found = [engine for group in groups.values() for engine in group]
    store = open_store(golden)
    make_into(store, chosen)

    from refsd.model_diagnose import causes

    runner = conformance.Runner(
        lambda numerics, deviations: Reference(numerics, deviations, model_files),
        lambda case: store.get(case.name).outputs,
        accepted,
        judges=JUDGES,
        causes=functools.partial(causes, model_files=model_files),
    )
    total = len(found) * len(chosen)
    with compile_progress(), steps("conform", total) as advance:
        results = conformance.run(runner, found, chosen, lambda r: advance(f"{r.engine} {r.case}"))
    names = {argument: [engine.name for engine in group] for argument, group in groups.items()}
    if not engines:
        names = {"every engine": [name for group in names.values() for name in group]}
    short = conformance.shortages(names, results, min_cases, cases == "*")
    outcome = conformance.Report(__version__, {e.name: e.version for e in found}, missing, results, short)

    pages.write(report / "report.md", pages.markdown(outcome).encode())
    for path in filter(None, (report / "conform.json", json)):
        pages.write(path, pages.encode(outcome))
    for path in filter(None, (report / "junit.xml", junit)):
        pages.write(path, pages.junit(outcome))
    _print(outcome, report)
    if not outcome.conforms or not found:
        raise typer.Exit(1)


def _find(arguments: list[str] | None):
    """Argument -> its engines, and those that are not there. What is named must be: raises BadInput."""
    from refsd.cli.model_files import model_files
    from refsd.golden.conform import Missing
    from refsd.golden.engines import registry
    from refsd.golden.errors import BadInput

    groups, missing = {}, []
    for argument in arguments or ("refsd:float32", *registry.DEFAULT):
        if argument.partition(":")[0] == "refsd":
            groups[argument] = [_reference(argument.partition(":")[2] or "float32")]
            continue
        looked = registry.find(argument, model_files=model_files)
        groups[argument] = [one.engine for one in looked if one.engine is not None]
        missing += [Missing(one.name, one.why_not) for one in looked if one.engine is None]
        if arguments and not groups[argument]:
            raise BadInput(f"{argument} was not found: {'; '.join(one.why_not for one in looked)}")
    return groups, missing


def _reference(profile: str):
    """The reference itself under a numerics profile, as an engine to be judged against float64."""
    from refsd.cli.model_files import model_files
    from refsd.engine import Reference
    from refsd.golden.errors import BadInput
    from refsd.golden.numerics import PROFILES

    if profile not in PROFILES:
        raise BadInput(f"refsd:{profile}: no such profile; there are {', '.join(PROFILES)}")
    engine = Reference(PROFILES[profile], model_files=model_files)
    engine.name = f"refsd-{profile}"
    return engine


def _print(outcome, report: Path) -> None:
    from rich.console import Console

    from refsd.golden import report as pages
    from refsd.golden import verdict

    console = Console()
    console.print(pages.table(outcome) if len(outcome.engines) <= _COLUMNS else pages.summary(outcome))
    for name, version in outcome.engines.items():
        console.print(f"{name} {version}", style="dim", markup=False, highlight=False)
    shown = pages.failures(outcome)
    for r in shown[:20]:
        console.print(f"{r.status:8} {r.engine}  {r.case}  margin {pages.margin_text(r.margin)}", markup=False)
        console.print(f"         {r.reason}", markup=False)
    if len(shown) > 20:
        console.print(f"... and {len(shown) - 20} more, in {report / 'report.md'}")
    for line in outcome.shortage:
        console.print(f"too few: {line}", markup=False)
    for engine in outcome.missing:
        console.print(f"not found: {engine.name}: {engine.why}", markup=False)
    ran = sum(r.status != verdict.REFUSED for r in outcome.results)
    bad = sum(not r.conforms for r in outcome.results)
    said = "conforms" if outcome.conforms and outcome.engines else "does not conform"
    answers = f"{ran} answers of {len(outcome.engines)} engines, {bad} not conforming"
    console.print(f"{said}: {answers}; {report / 'report.md'}", markup=False)
