"""refsd bench: time and memory beside torch and sd-cli."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command("bench")(bench)


def bench(
    what: Annotated[
        str, typer.Argument(help="unet (a step at 64x64 latents), vae (a decode at 256x256 pixels) or kernels.")
    ] = "unet",
    model: Annotated[
        Path | None, typer.Option("--model", "-m", help="SD 1.x checkpoint; default: recipe weights, made in f16.")
    ] = None,
    sd_cli: Annotated[Path | None, typer.Option(help="The program; else $REFSD_SD_CLI, then PATH.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Turns each contender takes; the best counts.")] = 3,
    json: Annotated[Path | None, typer.Option(help="Write every time to this file.")] = None,
) -> None:
    """Measure refsd in float32 beside torch and sd-cli, turn by turn, each in a process of its own."""
    from rich.console import Console

    from refsd.bench import WHAT, Request
    from refsd.bench import bench as measure
    from refsd.bench.table import table, warnings
    from refsd.golden.case import ModelRecipe
    from refsd.golden.errors import BadInput

    if what not in WHAT:
        raise BadInput(f"{what}: expected {', '.join(WHAT)}")
    console = Console(stderr=True)
    with console.status("recipe weights") as status:
        if model is None and what != "kernels":
            from refsd.cli.model_files import model_files

            model = model_files(ModelRecipe("sd15", "f16"), "ldm")
        entries = measure(Request(what, model, sd_cli, runs), status.update)
    Console().print(table(entries))
    for line in warnings(entries):
        Console().print(line, highlight=False)
    if json is not None:
        json.write_text(json_module.dumps({name: entry._asdict() for name, entry in entries.items()}, indent=2))
