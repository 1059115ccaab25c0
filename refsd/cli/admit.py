"""refsd admit: decide whether an engine may take another's place."""

import shlex
from pathlib import Path

import typer

from refsd.cli.golden import CASES

_ENGINE = "an engine as `refsd conform` takes it, or a conform.json of it, or conform.json:ENGINE of several."
_BASELINE = typer.Argument(help=f"What runs today: {_ENGINE}")
_CANDIDATE = typer.Argument(help="What shall replace it: another build, flag, commit or device; as BASELINE.")
_GOLDEN = typer.Option("goldens", "--store", help="Store of goldens; missing answers are computed.")
_JSON = typer.Option(False, "--json", help="Print JSON: each case with its ratio, bias and faults.")
# Print at most this many faulty cases; --json has all of them.
_SHOWN = 10


def admit(
    baseline: str = _BASELINE,
    candidate: str = _CANDIDATE,
    cases: list[str] = CASES,
    store: str = _GOLDEN,
    json: bool = _JSON,
) -> None:
    """Say in one line, to paste into a pull request, whether an engine may take another's place.

    Both are held against float64. The candidate must keep two rules. SGLang's admission rule: its RMS error is at
    most 1.5 times the baseline's, its mean error at most 0.25 of its RMS error, and no more elements are wrongly
    NaN or infinite. refsd's derived bound: where the baseline conforms, the candidate does. A case that the
    baseline answers and the candidate does not take is a fault.

    Runs on two machines are compared by their reports: `refsd conform --report a` writes a/conform.json.

    Exit code 0: admitted. 1: not admitted. 2: bad usage or input.
    """
    import msgspec

    from refsd.numerics.errors import BadInput

    reports = [_report(argument) for argument in (baseline, candidate)]
    if all(reports):
        outcome = _stored(cases, *reports)
    elif any(reports):
        raise BadInput(f"{baseline} and {candidate}: expected two engines or two reports, not one of each")
    else:
        outcome = _asked(baseline, candidate, cases, store)
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(outcome), indent=1).decode())
    else:
        typer.echo(outcome.line)
        faulty = [case for case in outcome.cases if case.faults]
        for case in faulty[:_SHOWN]:
            typer.echo(f"    {case.case}: {'; '.join(case.faults)}")
        if len(faulty) > _SHOWN:
            typer.echo(f"    ... and {len(faulty) - _SHOWN} more; --json has all")
        if outcome.refused:
            typer.echo(f"    not compared: {len(outcome.refused)}: the baseline does not answer them")
        if faulty:
            typer.echo(f"    why: refsd conform {shlex.quote(candidate)} --cases {shlex.quote(faulty[0].case)}")
    if not outcome.admitted:
        raise typer.Exit(1)


def _report(argument: str):
    """Return the results of one engine in a report, and its name and version; None if the argument is an engine."""
    from refsd.numerics.errors import BadInput
    from refsd.reports import stored

    path, ends, wanted = argument.partition(".json:")
    if not ends and not argument.endswith(".json"):
        return None
    path = path.removesuffix(".json") + ".json"
    report = stored.read(Path(path))
    known = ", ".join(report.engines)
    if not wanted and len(report.engines) != 1:
        raise BadInput(f"{path}: a report of {known or 'no engine'}: name one, as {path}:ENGINE")
    name = wanted or next(iter(report.engines))
    if name not in report.engines:
        raise BadInput(f"{path}: no engine {name!r}: the report has {known}")
    return name, report.engines[name], [result for result in report.results if result.engine == name]


def _stored(cases: list[str] | None, baseline, candidate):
    from fnmatch import fnmatchcase

    from refsd import __version__
    from refsd.disagreement.admission import of_results
    from refsd.numerics.errors import BadInput

    names = _apart(baseline[0], candidate[0])
    engines = {name: side[1] for name, side in zip(names, (baseline, candidate), strict=True)}
    chosen = [
        [result for result in side[2] if any(fnmatchcase(result.case, glob) for glob in cases or ("*",))]
        for side in (baseline, candidate)
    ]
    if cases and not any(chosen):
        raise BadInput(f"--cases {' '.join(cases)}: neither report has such a case")
    return of_results(__version__, engines, *chosen)


def _asked(baseline: str, candidate: str, cases: list[str] | None, store: str):
    from refsd import __version__
    from refsd import cases as corpus
    from refsd.disagreement.admission import of_engines
    from refsd.engines.chosen import one_engine
    from refsd.goldens.judging import runner
    from refsd.goldens.making import answerable, make_into
    from refsd.progress.compiling import compile_progress
    from refsd.progress.steps import steps
    from refsd.weights.model_files import open_store, trim_model_files

    chosen = answerable(corpus.select(*(cases or ("*",))))
    engines = [one_engine(argument) for argument in (baseline, candidate)]
    for engine, name in zip(engines, _apart(engines[0].name, engines[1].name), strict=True):
        engine.name = name
    place = open_store(store)
    make_into(place, [case for case in chosen if engines[0].refuses(case) is None])
    judging = runner(lambda case: place.get(case.name).outputs)._replace(explains=False)
    with compile_progress(), steps("admit", len(chosen)) as advance:

        def done(case: str) -> None:
            advance(case)
            trim_model_files()

        return of_engines(judging, engines[0], engines[1], chosen, __version__, done)


def _apart(baseline: str, candidate: str) -> tuple[str, str]:
    """Return names that differ."""
    return (f"{baseline} (before)", f"{candidate} (after)") if baseline == candidate else (baseline, candidate)
