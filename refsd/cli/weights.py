"""refsd weights make: write recipe weights in the layout of a real checkpoint."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Type(StrEnum):
    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"
    q4_0 = "q4_0"
    q4_1 = "q4_1"
    q5_0 = "q5_0"
    q5_1 = "q5_1"
    q8_0 = "q8_0"
    q2_k = "q2_k"
    q3_k = "q3_k"
    q4_k = "q4_k"
    q5_k = "q5_k"
    q6_k = "q6_k"
    iq2_xxs = "iq2_xxs"
    iq2_xs = "iq2_xs"
    iq3_xxs = "iq3_xxs"
    iq1_s = "iq1_s"
    iq4_nl = "iq4_nl"
    iq3_s = "iq3_s"
    iq2_s = "iq2_s"
    iq4_xs = "iq4_xs"
    iq1_m = "iq1_m"
    tq1_0 = "tq1_0"
    tq2_0 = "tq2_0"
    mxfp4 = "mxfp4"
    q1_0 = "q1_0"


class Layout(StrEnum):
    ldm = "ldm"
    diffusers = "diffusers"


weights = typer.Typer(no_args_is_help=True, help="Make the weights of a model from a recipe.")


@weights.command()
def make(
    family: Annotated[str, typer.Argument(help="sd15, flux-dev, zimage, ...; an unknown name lists all.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A .safetensors or .gguf file, or a folder.")],
    type: Annotated[Type, typer.Option(help="Storage type; block types need a .gguf file.")] = Type.f16,
    tiny: Annotated[bool, typer.Option("--tiny", help="A small configuration of the same architecture.")] = False,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="NAME=VALUE",
            help="Another dimension, as flux.double_blocks=1 or unet.widths=[64]; may be repeated.",
        ),
    ] = None,
    layout: Annotated[
        Layout, typer.Option(help="ldm: one file with the original names; diffusers: a folder.")
    ] = Layout.ldm,
) -> None:
    """Make recipe weights: pseudo-random numbers from tensor names, the same bytes on every machine, no download.

    The model has the names, shapes and types of the real one; pictures made with it are noise.
    Each --type draws its own numbers: q8_0 is no copy of f16, and `refsd diff` shows them as changed.
    """
    from refsd.cli.bar import bar
    from refsd.golden.case import ModelRecipe
    from refsd.weights import recipes

    sizes = tuple(_dimension(text) for text in size or ())
    model = ModelRecipe(family, type.value, tiny, sizes=sizes) if sizes else ModelRecipe(family, type.value, tiny)
    recipes.shapes(model)
    with bar(f"{output}", recipes.size(model)) as advance:
        recipes.make(model, output, layout.value, advance)


def _dimension(text: str):
    """Read NAME=VALUE. Raises BadInput."""
    import msgspec

    from refsd.golden.case import Dimension
    from refsd.numerics.errors import BadInput

    name, _, value = text.partition("=")
    try:
        return name, msgspec.json.decode(value, type=Dimension)
    except msgspec.DecodeError:
        raise BadInput(f"--size {text}: expected NETWORK.DIMENSION=NUMBER, true, false, null or [N,N]") from None
