"""refsd badge: a picture for a README that says whether a report conforms."""

from pathlib import Path

import typer

_REPORT = typer.Argument(
    help="conform.json of `refsd conform`, of a run with --profile if the badge is to name one."
)
_OUT = typer.Option(Path("badge.svg"), "--out", "-o", help="SVG file to write.")
_ENGINE = typer.Option(
    "", help="Of a report on several engines: the one that the badge is for.", show_default="all"
)


def badge(report: Path = _REPORT, out: Path = _OUT, engine: str = _ENGINE) -> None:
    """Draw a badge: the profile, and whether the engine meets it. It loads nothing from the network."""
    from refsd.golden.output_file import write_file
    from refsd.numerics.errors import BadInput
    from refsd.reports.badge import badge as draw
    from refsd.reports.stored import read

    found = read(report)
    if engine and engine not in found.engines:
        raise BadInput(f"{report}: no engine {engine!r}: it has {', '.join(found.engines)}")
    write_file(out, draw(found, engine).encode())
