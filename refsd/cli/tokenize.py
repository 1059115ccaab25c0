"""refsd tokenize: turn a prompt into a text encoder's token ids."""

from pathlib import Path
from typing import Annotated

import typer

COMPONENTS = ("clip", "clip_g", "t5", "qwen3", "qwen2_5_vl", "qwen3_vl", "mistral", "gemma2")


def register(app: typer.Typer) -> None:
    app.command()(tokenize)


def tokenize(
    component: Annotated[str, typer.Option(help=f"{', '.join(COMPONENTS)}.")],
    prompt: Annotated[list[str], typer.Option("-p", "--prompt", help="A prompt; repeat it for more rows.")],
    model: Annotated[
        Path | None,
        typer.Argument(help="A text encoder's .gguf or a diffusers folder that contains the tokenizer."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="tokenizer.json, spiece.model, vocab.json with merges.txt, or a folder that has one of them."
        ),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(
            help="Template and padding of: sd1, sd2, sdxl, sd3, flux, chroma, zimage, lumina2, qwen-image, krea2, "
            "flux2-dev, flux2-klein."
        ),
    ] = None,
    like: Annotated[str, typer.Option(help="The engine whose rules to follow: diffusers or sdcpp.")] = "diffusers",
    length: Annotated[int | None, typer.Option(help="Tokens in a row. Default: the family's length.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="A .safetensors file, for `refsd forward -i`, or .npz or .npy."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Turn a prompt into token ids, with the start, end and padding tokens that the family's text encoder expects.

    Writes input_ids, and attention_mask if the family's encoder masks padding. Prompt weights such as (x:1.2) are
    not interpreted.
    """
    from refsd.commands.tokenize import Options, run

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
