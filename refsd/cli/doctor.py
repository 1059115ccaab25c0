"""refsd doctor: examine the installation."""

import typer

from refsd.cli.json_output import JSON

_FULL = typer.Option(
    False, "--full", help="Also load every engine, and time BLAS with and without what the environment presets."
)


def doctor(full: bool = _FULL, json: bool = JSON) -> None:
    """Examine the installation: versions, processor, threads, BLAS, engines, caches.

    First what is slow or missing, and what to do about it; then what was found. Without --full no engine is loaded,
    and it takes less than a second.
    """
    import msgspec

    from refsd.commands import doctor as examination

    report = examination.examine()
    if full:
        report.sections["engines"] = list(examination.try_engines())
        report.sections["threads and BLAS"] += examination.time_blas()
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=1).decode())
        return
    for problem in report.problems:
        typer.echo(f"{problem.kind:8} {problem.what}\n{'':8} {problem.advice}")
    if not report.problems:
        typer.echo("nothing is slow, missing or wrong")
    for title, facts in report.sections.items():
        typer.echo(f"\n{title}")
        for fact in facts:
            typer.echo(f"  {fact.name:14} {fact.found}")
