"""refsd tokenize: turn a prompt into a text encoder's token ids."""

from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand


class Command(TyperCommand):
    """Append a list of the families and their text encoders to --help; the table is imported only then."""

    def format_help(self, ctx, formatter):
        from refsd.families import FAMILIES

        lists = [f"{name}: {', '.join(family.encoders)}" for name, family in FAMILIES.items()]
        self.epilog = f"Families and their text encoders: {'; '.join(lists)}."
        super().format_help(ctx, formatter)


def tokenize(
    component: Annotated[
        str, typer.Option(help="A text encoder: clip or clip_l, t5 or t5xxl, ...: see the list below.")
    ],
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
            help="Whose template and padding. Default: the first family below that cannot do without the encoder."
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
