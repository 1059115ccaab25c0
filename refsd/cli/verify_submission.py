"""refsd verify-submission: give the verdicts of somebody else's run again."""

from pathlib import Path

import typer

from refsd.cli.golden import STORE, STORE_HELP

_FILE = typer.Argument(help="File of `refsd conform --submission`.")
_GOLDEN = typer.Option(STORE, "--golden", help=STORE_HELP)
_JSON = typer.Option(False, "--json", help="Print JSON: accepted, conforms, engines, problems.")
_LINES = 20


def verify_submission(file: Path = _FILE, golden: str = _GOLDEN, json: bool = _JSON) -> None:
    """Verify a submission: give every verdict again from its metrics, and hold these against the truth.

    The truth, the bounds and the honest runs are computed here; outputs travel whole, or as sketches that their
    metrics must fit. Refused are edited verdicts and metrics, other cases or rules, too few cases for the profile,
    numerics that refsd does not know, missing outputs, damaged and hostile files.

    Exit code 0: accepted, and it conforms. 1: accepted, and it does not. 2: refused.
    """
    import msgspec

    from refsd import cases
    from refsd.golden.wording import counted
    from refsd.goldens.making import make_into
    from refsd.judges import judges
    from refsd.numerics.errors import BadInput
    from refsd.numerics.printable import printable
    from refsd.progress.compiling import compile_progress
    from refsd.progress.steps import steps
    from refsd.submissions.packing import read
    from refsd.submissions.verify import Bench, verify
    from refsd.weights.model_files import model_files, open_store, trim_model_files

    parts = read(file)
    names = list(dict.fromkeys(one.case for one in parts.evidence if one.case in cases.CASES))
    store = open_store(golden)

    def truth(name: str):
        if not store.has(cases.CASES[name]):
            make_into(store, [cases.CASES[name]])
        return store.get(name).outputs

    with compile_progress(), steps("verify", len(names)) as advance:

        def done(name: str) -> None:
            advance(name)
            trim_model_files()

        found = verify(parts, Bench(judges(model_files), truth, done))
    submission, report = parts.submission, parts.report
    if json:
        summary = {"file": file.name, "accepted": not found.problems, "conforms": found.conforms}
        summary |= {"engines": report.engines, "devices": report.devices, "profile": report.profile}
        summary |= {"date": submission.date, "problems": list(found.problems), "unmet": list(found.unmet)}
        typer.echo(msgspec.json.encode(summary).decode())
    if found.problems:
        for line in found.problems[1:_LINES] if not json else ():
            typer.echo(line, err=True)
        more = f" (and {counted(len(found.problems) - 1, 'other problem')})" if len(found.problems) > 1 else ""
        raise BadInput(f"{file}: refused: {found.problems[0]}{more}")
    if not json:
        bad = sum(not r.conforms for r in report.results)
        engines = ", ".join(f"{name} {version}" for name, version in report.engines.items())
        against = f" {report.profile}" if report.profile else ""
        word = (
            f"conforms{against}"
            if found.conforms
            else f"does not conform{against}: {counted(bad, 'case')} not conforming"
        )
        typer.echo(printable(f"{file}: accepted: {engines}: {word}"))
        for line in found.unmet:
            typer.echo(printable(line))
    if not found.conforms:
        raise typer.Exit(1)
