"""refsd weights make: write recipe weights in the layout of a real checkpoint."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Layout(StrEnum):
    ldm = "ldm"
    diffusers = "diffusers"


weights = typer.Typer(no_args_is_help=True, help="Make the weights of a model from a recipe.")


@weights.command()
def make(
    family: Annotated[str, typer.Argument(help="sd15, flux-dev, zimage, ...; an unknown name lists all.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A .safetensors or .gguf file, or a folder.")],
    type: Annotated[
        str,
        typer.Option(
            help="Storage type: f32, f16, bf16; a block type of GGUF (q8_0, q4_k, ...); one of ComfyUI's "
            "(comfy-fp8, comfy-int8, comfy-int8-convrot, w4a8, convrot-w4a4, nvfp4-w4a4, mxfp8-w8a8); an unknown "
            "name lists all."
        ),
    ] = "f16",
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
    model = ModelRecipe(family, type, tiny, sizes=sizes) if sizes else ModelRecipe(family, type, tiny)
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
