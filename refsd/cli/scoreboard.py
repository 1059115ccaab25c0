"""refsd scoreboard: many reports as a static site."""

from pathlib import Path

import typer

_FOLDER = typer.Argument(help="Folder of reports (conform.json) and submissions (*.zip), or a board's runs.json.")
_OUT = typer.Option(Path("site"), "--out", "-o", help="Folder for the pages; a board that is there is replaced.")
_JSON = typer.Option(False, "--json", help="Print JSON: runs and what was left out.")


def scoreboard(folder: Path = _FOLDER, out: Path = _OUT, json: bool = _JSON) -> None:
    """Show reports as a board: engines, versions and devices against operations, with a page for each run.

    The pages need no network and no server. Verdicts of submissions are given again from their metrics; one that
    contradicts itself, and any file that is neither report nor submission, is left out and named. runs.json holds
    what the board shows, and makes it again.

    Exit code 0: written. 2: nothing to show, or bad input.
    """
    import msgspec

    from refsd.golden.wording import counted
    from refsd.numerics.errors import BadInput
    from refsd.numerics.printable import printable
    from refsd.progress.steps import steps
    from refsd.scoreboard.runs import find, read
    from refsd.scoreboard.site import gathered, write

    paths, runs, left_out = find(folder), [], []
    with steps("scoreboard", len(paths)) as advance:
        for path in paths:
            try:
                runs += read(path)
            except BadInput as error:
                left_out.append(printable(str(error)))
            advance(path.name)
    for line in left_out:
        typer.echo(f"left out: {line}", err=True)
    shown = gathered(runs)
    pages = write(out, shown)
    if json:
        typer.echo(msgspec.json.encode({"runs": len(shown), "pages": pages, "left_out": left_out}).decode())
    else:
        typer.echo(f"{out / 'index.html'}: {counted(len(shown), 'run')}, {counted(pages, 'page')}")
