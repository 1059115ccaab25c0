"""refsd tokenize: a prompt as the ids that a text encoder takes."""

from pathlib import Path
from typing import Annotated

import typer

COMPONENTS = ("clip", "clip_g", "t5", "qwen3", "mistral")


def register(app: typer.Typer) -> None:
    app.command()(tokenize)


def tokenize(
    component: Annotated[str, typer.Option(help=f"{', '.join(COMPONENTS)}.")],
    prompt: Annotated[list[str], typer.Option("-p", "--prompt", help="May be repeated: a row each.")],
    model: Annotated[
        Path | None, typer.Argument(help="A text encoder's .gguf, or a diffusers folder: its tokenizer is taken.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="tokenizer.json, spiece.model, vocab.json beside merges.txt, or a folder with one."),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(
            help="Whose words and padding: sd1, sd2, sdxl, sd3, flux, chroma, zimage, flux2-dev, flux2-klein."
        ),
    ] = None,
    like: Annotated[str, typer.Option(help="diffusers or sdcpp.")] = "diffusers",
    length: Annotated[int | None, typer.Option(help="Tokens of a row, in place of the family's.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A .safetensors file, for `refsd forward -i`, or .npz or .npy."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Turn a prompt into token ids, begun, ended and padded as the family's text encoder expects them.

    The file has input_ids, and attention_mask where the family's encoder is told of padding. Prompt weights mean
    nothing here.
    """
    from refsd.tokenize import Options, run

    run(
        Options(
            model=model,
            tokenizer=tokenizer,
            component=component,
            prompts=prompt,
            family=family,
            like=like,
            length=length,
            output=output,
            json=json,
        )
    )
