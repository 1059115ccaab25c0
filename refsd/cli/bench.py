"""refsd bench: time and memory of refsd compared with torch, sd-cli, ggml and gguf-py."""

import json as json_module
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refsd.cli.parts import T5XXL, ClipG, ClipL, DiffusionModel, Llm, Vae, part_files

if TYPE_CHECKING:
    from rich.console import Console

    from refsd.bench import BenchRequest
    from refsd.bench.kernels import KernelRequest

WHAT = ("unet", "vae", "diffusion", "kernels")


# Over 80 lines, of which 60 declare its options.
def bench(
    what: Annotated[
        str,
        typer.Argument(
            help="unet (a step at 64x64 latents) or vae (a decode at 256x256 pixels), beside peers and the limit;"
            " diffusion: a step of any model's denoiser beside sd-cli; kernels: single operations beside"
            " torch, ggml and gguf-py."
        ),
    ] = "unet",
    model: Annotated[
        Path | None,
        typer.Option("--model", "-m", help="Checkpoint. unet, vae: an SD 1.x one; default: recipe weights in f16."),
    ] = None,
    sd_cli: Annotated[Path | None, typer.Option(help="Path of sd-cli. Default: $REFSD_SD_CLI, then PATH.")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Turns each contender takes; the best counts.")] = 3,
    only: Annotated[
        list[str] | None,
        typer.Option(help="kernels: only rows that match a glob: 'convolution/*'. Repeatable."),
    ] = None,
    contender: Annotated[
        list[str] | None,
        typer.Option(
            help="unet, vae: who takes part, by glob, repeatable: limit, 'torch*', onnxruntime, 'sd-cli*', ..."
            " Default: all but torch's channels_last and compile, and sd-cli with llamafile."
        ),
    ] = None,
    sd_cli_llamafile: Annotated[
        Path | None, typer.Option(help="An sd-cli built with GGML_LLAMAFILE. Default: $REFSD_SD_CLI_LLAMAFILE.")
    ] = None,
    avx2: Annotated[
        bool, typer.Option("--avx2", help="unet, vae: keep every contender that can be kept from AVX-512.")
    ] = False,
    card: Annotated[
        Path | None, typer.Option(help="unet, vae: write a card of this machine and its times, in Markdown.")
    ] = None,
    ggml: Annotated[
        Path | None, typer.Option(help="kernels: folder of a shared libggml. Default: $REFSD_GGML.")
    ] = None,
    ggml_llamafile: Annotated[
        Path | None, typer.Option(help="kernels: the same, built with GGML_LLAMAFILE. Default: $REFSD_GGML_NEWEST.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every contender.")] = 2,
    presets: Annotated[
        bool,
        typer.Option("--presets", help="kernels: also time refsd with the OPENBLAS_* variables that are set."),
    ] = False,
    side: Annotated[int, typer.Option(min=16, help="diffusion: side of the square picture, in pixels.")] = 256,
    tokens: Annotated[int, typer.Option(min=0, help="diffusion: text tokens; 0: the model's usual number.")] = 0,
    diffusion_model: DiffusionModel = None,
    vae: Vae = None,
    clip_l: ClipL = None,
    clip_g: ClipG = None,
    t5xxl: T5XXL = None,
    llm: Llm = None,
    json: Annotated[
        Path | None,
        typer.Option(help="Write every time to this file; not to standard output (-)."),
    ] = None,
) -> None:
    """Time refsd in float32 against its peers: interleaved runs, each contender in its own process."""
    from refsd.golden.input_file import note_input
    from refsd.golden.output_file import Outputs, write_file
    from refsd.numerics.errors import BadInput

    if what not in WHAT:
        raise BadInput(f"{what}: expected {', '.join(WHAT)}")
    for file in filter(None, (model, sd_cli, sd_cli_llamafile, diffusion_model, vae, clip_l, clip_g, t5xxl, llm)):
        note_input(file)
    for option, file in (("--json", json), ("--card", card)):
        if file is not None:
            Outputs().add(option, file)
    if what == "kernels":
        from refsd.bench.kernels import KernelRequest

        places = {
            "ggml": str(ggml or os.environ.get("REFSD_GGML") or ""),
            "ggml-llamafile": str(ggml_llamafile or os.environ.get("REFSD_GGML_NEWEST") or ""),
        }
        written = _kernels(KernelRequest(tuple(only or ["*"]), places, threads, runs, presets))
    else:
        from refsd.bench import USUAL, BenchRequest

        parts = part_files(diffusion_model, vae, None, clip_l, clip_g, t5xxl, llm, None)
        if what == "diffusion" and model is None and diffusion_model is None:
            raise BadInput("bench diffusion: no model: name one with --model or --diffusion-model")
        chosen = tuple(contender or USUAL), sd_cli_llamafile
        request = BenchRequest(what, model, sd_cli, runs, parts, side, tokens, threads, avx2, *chosen)
        written = _models(request, card)
    if json is not None:
        write_file(json, json_module.dumps(written, indent=2).encode())


def _kernels(request: "KernelRequest") -> dict[str, Any]:
    """Time kernels, and print tables -> what --json writes."""
    from refsd.bench.kernel_tables import notes, tables
    from refsd.bench.kernels import bench

    progress, console = _consoles()
    with progress.status("kernels") as status:
        result = bench(request, status.update)
    for one in tables(result):
        console.print(one)
    _print(console, notes(result))
    rows = {
        name: {column: cell._asdict() for column, cell in cells.items()} for name, cells in result.cells.items()
    }
    return {"setups": result.setups, "rows": rows}


def _models(request: "BenchRequest", card: Path | None) -> dict[str, Any]:
    """Time a step or a decode of a model, and print a table -> what --json writes. card: file for a machine card"""
    from refsd.bench import bench
    from refsd.bench.table import table, warnings
    from refsd.golden.case import ModelRecipe
    from refsd.golden.output_file import write_file

    progress, console = _consoles()
    with progress.status("recipe weights") as status:
        if request.model is None and request.what in ("unet", "vae"):
            from refsd.weights.model_files import model_files

            request = request._replace(model=model_files(ModelRecipe("sd15", "f16"), "ldm"))
        entries = bench(request, status.update)
    console.print(table(entries))
    _print(console, warnings(entries))
    if card is not None:
        from refsd.bench.card import machine_card

        write_file(card, machine_card(entries, request.avx2).encode())
    return {name: entry._asdict() for name, entry in entries.items()}


def _consoles() -> "tuple[Console, Console]":
    """Return a console for progress, and one for tables."""
    from rich.console import Console

    return Console(stderr=True), Console(width=None if sys.stdout.isatty() else 160, emoji=False)


def _print(console: "Console", lines: Iterable[str]) -> None:
    from refsd.numerics.printable import printable

    for line in lines:
        console.print(printable(line), highlight=False, markup=False)
