"""The command line, one file for each command. Heavy modules are imported only when a command needs them."""

import os
import sys

import typer

from refsd import SHORT, SPINS, __version__
from refsd.cli.listing import Listing

# Before any command imports NumPy, and for the processes that it starts.
os.environ.setdefault(SPINS, SHORT)

app = typer.Typer(
    name="refsd",
    cls=Listing,
    help="Reference implementation and test oracle for diffusion image engines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"refsd {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    from refsd.golden.input_file import inputs_of_a_run

    context.with_resource(inputs_of_a_run())


def main() -> None:
    """Run the command line. Exit codes: 0 pass, 1 does not conform, 2 bad usage or bad input."""
    from refsd.cli.ending import run

    sys.exit(run(app))
