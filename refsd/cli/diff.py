"""refsd diff: what changed from one conformance report, or one weight file, to another."""

from pathlib import Path

import typer

from refsd.cli.json_output import JSON
from refsd.golden.wording import counted

_OLD = typer.Argument(help="conform.json of an earlier `refsd conform`; or a file or folder of weights.")
_NEW = typer.Argument(help="conform.json of a later one; or a file or folder of weights, of any layout and type.")
_FACTOR = typer.Option(
    2.0, min=1.01, help="A margin that grew so many times got worse. Margins below 0.1 count as 0.1."
)
_HTML = typer.Option(None, "--html", help="Of weights: write a page with plots to this file too.")
_LINES = 50


def diff(
    old: Path = _OLD, new: Path = _NEW, factor: float = _FACTOR, json: bool = JSON, html: Path | None = _HTML
) -> None:
    """Show what changed from one conformance report, or one weight file, to another.

    Of weights, each tensor is the same, cast or requantised (with its relative
    error), scaled, transposed, permuted, rotated, swapped with another, changed,
    or in one file alone. Cast and requantised is what differs no more than the
    type costs: the first file's own tensor is requantised to measure that, in
    each row, column and block. The layouts and types of the files may differ: diffusers'
    folder against a single file against GGUF. Exit code 1 if more than the
    storage type differs.

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

    from refsd.numerics.errors import BadInput

    if _is_weights(old) or _is_weights(new):
        _diff_weights(old, new, json, html)
        return
    if html is not None:
        raise BadInput("--html: `refsd conform --report` writes the page of a report; leave it out")

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


def _is_weights(path: Path) -> bool:
    """Tell weights from a report, which is a JSON file."""
    from refsd.golden.file_kinds import JSON, START, kind
    from refsd.golden.input_file import open_input

    if path.is_dir() or ".index." in path.name:
        return True
    with open_input(path, "a report of `refsd conform`, or weights") as file:
        return kind(file.read(START)) != JSON and path.suffix != ".json"


def _diff_weights(old: Path, new: Path, json: bool, html: Path | None) -> None:
    import msgspec

    from refsd.cli.bar import bar
    from refsd.diagnosis.difference import STORAGE, compare, elements, of_two_models
    from refsd.numerics.printable import printable

    with bar(f"comparing {new}", elements(old)) as advance:
        rows = compare(old, new, advance)
    if html is not None:
        from refsd.diagnosis.html_pages import diff_page, save

        save(html, diff_page(rows, old, new))
    if json:
        typer.echo(msgspec.json.encode([row._asdict() for row in rows]).decode())
    else:
        for line in of_two_models(old, new):
            typer.echo(printable(line))
        groups: dict[tuple[str, str], list] = {}
        for row in rows:
            kinds = " -> ".join(dict.fromkeys(row.types)) if row.verdict in STORAGE else ""
            groups.setdefault((row.verdict, kinds), []).append(row)
        others = [(key, of) for key, of in groups.items() if key[0] not in STORAGE]
        for (verdict, _), of in others:
            for row in of[:_LINES]:
                error = f"  error {row.error:.3g}" if row.error else ""
                typer.echo(printable(f"{verdict:11} {row.name}  {row.detail}{error}".rstrip()))
            if len(of) > _LINES:
                typer.echo(f"{verdict:11} ... and {len(of) - _LINES} more")
        for (verdict, kinds), of in sorted(groups.items()):
            errors = [row.error for row in of if row.error]
            spread = f", relative error {min(errors):.3g} to {max(errors):.3g}" if errors else ""
            typer.echo(f"{len(of):6} {verdict} {kinds}{spread}".rstrip())
    if any(row.verdict not in STORAGE for row in rows):
        raise typer.Exit(1)
