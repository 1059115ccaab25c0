"""refsd bench: time and memory of refsd compared with torch, sd-cli, ggml and gguf-py."""

import json as json_module
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from refsd.cli.parts import T5XXL, ClipG, ClipL, DiffusionModel, Llm, Vae, part_files

WHAT = ("unet", "vae", "diffusion", "kernels")


def register(app: typer.Typer) -> None:
    app.command("bench")(bench)


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
    json: Annotated[Path | None, typer.Option(help="Write every time to this file.")] = None,
) -> None:
    """Time refsd in float32 against its peers: interleaved runs, each contender in its own process."""
    from rich.console import Console

    from refsd.golden.input_file import note_input
    from refsd.golden.output_file import Outputs, write_file
    from refsd.numerics.errors import BadInput
    from refsd.numerics.printable import printable

    if what not in WHAT:
        raise BadInput(f"{what}: expected {', '.join(WHAT)}")
    for file in filter(None, (model, sd_cli, sd_cli_llamafile, diffusion_model, vae, clip_l, clip_g, t5xxl, llm)):
        note_input(file)
    for option, file in (("--json", json), ("--card", card)):
        if file is not None:
            Outputs().add(option, file)
    progress, console = Console(stderr=True), Console(width=None if sys.stdout.isatty() else 160, emoji=False)
    if what == "kernels":
        from refsd.bench import kernels
        from refsd.bench.kernel_tables import notes, tables

        places = {
            "ggml": str(ggml or os.environ.get("REFSD_GGML") or ""),
            "ggml-llamafile": str(ggml_llamafile or os.environ.get("REFSD_GGML_NEWEST") or ""),
        }
        with progress.status("kernels") as status:
            result = kernels.bench(
                kernels.KernelRequest(tuple(only or ["*"]), places, threads, runs, presets), status.update
            )
        for one in tables(result):
            console.print(one)
        for line in notes(result):
            console.print(printable(line), highlight=False, markup=False)
        written = {
            "setups": result.setups,
            "rows": {
                name: {column: cell._asdict() for column, cell in cells.items()}
                for name, cells in result.cells.items()
            },
        }
    else:
        from refsd.bench import USUAL, BenchRequest
        from refsd.bench import bench as measure
        from refsd.bench.table import table, warnings
        from refsd.golden.case import ModelRecipe

        parts = part_files(diffusion_model, vae, None, clip_l, clip_g, t5xxl, llm, None)
        if what == "diffusion" and model is None and diffusion_model is None:
            raise BadInput("bench diffusion: no model: name one with --model or --diffusion-model")
        with progress.status("recipe weights") as status:
            if model is None and what in ("unet", "vae"):
                from refsd.weights.model_files import model_files

                model = model_files(ModelRecipe("sd15", "f16"), "ldm")
            chosen = tuple(contender or USUAL), sd_cli_llamafile
            request = BenchRequest(what, model, sd_cli, runs, parts, side, tokens, threads, avx2, *chosen)
            entries = measure(request, status.update)
        console.print(table(entries))
        for line in warnings(entries):
            console.print(printable(line), highlight=False, markup=False)
        written = {name: entry._asdict() for name, entry in entries.items()}
        if card is not None:
            from refsd.bench.card import machine_card

            write_file(card, machine_card(entries, avx2).encode())
    if json is not None:
        write_file(json, json_module.dumps(written, indent=2).encode())
