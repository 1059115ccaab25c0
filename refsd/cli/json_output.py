"""The option --json of commands, and how they print what it asks for."""

import typer

JSON = typer.Option(False, "--json", help="Print JSON.")


def print_json(what) -> None:
    import json

    typer.echo(json.dumps(what, indent=1))
