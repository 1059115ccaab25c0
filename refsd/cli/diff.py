"""refsd diff: what changed from one conformance report to another."""

from pathlib import Path

import typer

from refsd.golden.wording import counted

_OLD = typer.Argument(help="conform.json of an earlier `refsd conform`.")
_NEW = typer.Argument(help="conform.json of a later one.")
_FACTOR = typer.Option(
    2.0, min=1.01, help="A margin that grew so many times got worse. Margins below 0.1 count as 0.1."
)
_JSON = typer.Option(False, "--json", help="Print JSON.")
_LINES = 50


def register(app: typer.Typer) -> None:
    app.command()(diff)


def diff(old: Path = _OLD, new: Path = _NEW, factor: float = _FACTOR, json: bool = _JSON) -> None:
    """Show what changed from one conformance report to another.

    Worse is a case that fails and did not fail before, one that is no longer
    judged, a margin that grew by --factor, and an engine that is missing. Cases
    that only the old report has, as of a run with --cases, are only counted.

    Find the commit that broke an engine with `git bisect run sh judge.sh`:

        make -s engine || exit 125
        refsd conform exec:./engine --report r
        [ $? -lt 2 ] || exit 125
        refsd diff good.json r/conform.json

    Exit code 0: nothing got worse. 1: something did. 2: bad input.
    """
    import msgspec

    from refsd.reports.changes import compare
    from refsd.reports.stored import read

    before, after = read(old), read(new)
    changes = compare(before, after, factor)
    if json:
        typer.echo(msgspec.json.encode(changes).decode())
    else:
        _print(changes, after.partial)
    if changes.got_worse:
        raise typer.Exit(1)


def _print(changes, partial: str) -> None:
    from refsd.numerics.printable import printable

    for name in changes.gone:
        typer.echo(printable(f"worse   {name} was judged before and is not now"))
    for kind in ("worse", "better", "other"):
        found = getattr(changes, kind)
        for change in found[:_LINES]:
            _line(kind, change)
        if len(found) > _LINES:
            typer.echo(f"{kind:7} ... and {len(found) - _LINES} more")
    if partial:
        typer.echo(printable(f"the new report is partial: {partial}"))
    counts = f"{len(changes.worse) + len(changes.gone)} worse, {len(changes.better)} better"
    alone = f"{counted(changes.only_old, 'answer')} only in the old report, {changes.only_new} only in the new"
    typer.echo(f"{counts}, {len(changes.other)} otherwise changed; {alone}")


def _line(kind: str, change) -> None:
    from refsd.numerics.printable import printable
    from refsd.reports.cells import margin_text

    old = f"{change.old} {margin_text(change.old_margin)}" if change.old else "not there"
    typer.echo(
        printable(
            f"{kind:7} {change.engine}  {change.case}  {old} -> {change.new} {margin_text(change.new_margin)}"
        )
    )
    if kind == "worse" and change.reason:
        typer.echo(printable(f"        {change.reason}"))
