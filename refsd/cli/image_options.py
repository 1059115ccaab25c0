"""Options of commands that take input pictures: the picture to start from, its mask, control and reference."""

from pathlib import Path
from typing import Annotated

import typer

IMAGES = "Input pictures"
STRENGTH, CONTROL_STRENGTH = 0.75, 0.9

InitImg = Annotated[
    Path | None,
    typer.Option(
        "-i", "--init-img", "--init-image", help="The picture to start from (img2img).", rich_help_panel=IMAGES
    ),
]
Strength = Annotated[
    float,
    typer.Option("--strength", help="How much of the starting picture to redraw, 0 to 1.", rich_help_panel=IMAGES),
]
Mask = Annotated[
    Path | None,
    typer.Option("--mask", help="Inpainting mask: white areas are redrawn.", rich_help_panel=IMAGES),
]
ControlImage = Annotated[
    Path | None,
    typer.Option(
        "--control-image", help="Control picture for a ControlNet, FLUX.1 Canny or Depth.", rich_help_panel=IMAGES
    ),
]
ControlStrength = Annotated[
    float, typer.Option("--control-strength", help="Strength of the ControlNet.", rich_help_panel=IMAGES)
]
RefImage = Annotated[
    Path | None,
    typer.Option(
        "-r",
        "--ref-image",
        help="The picture to edit, for pix2pix, FLUX.1 Kontext and FLUX.2.",
        rich_help_panel=IMAGES,
    ),
]
RefImages = Annotated[
    list[Path] | None,
    typer.Option(
        "-r",
        "--ref-image",
        help="The picture to edit, for pix2pix, FLUX.1 Kontext, FLUX.2, Qwen-Image-Edit. May be repeated for the "
        "last two.",
        rich_help_panel=IMAGES,
    ),
]
ReduxImage = Annotated[
    Path | None,
    typer.Option(
        "--redux-image",
        help="The picture whose content FLUX.1 takes as words, with --redux and --clip_vision; of the encoder's "
        "size, 384x384.",
        rich_help_panel=IMAGES,
    ),
]
IPImages = Annotated[
    list[Path] | None,
    typer.Option(
        "--ip-image",
        help="A picture as a prompt, with --ip-adapter and --clip_vision. May be repeated.",
        rich_help_panel=IMAGES,
    ),
]
IPScale = Annotated[
    float,
    typer.Option("--ip-scale", help="Factor of what the IP-Adapter adds.", rich_help_panel=IMAGES),
]


def image_files(
    init: Path | None,
    mask: Path | None,
    control: Path | None = None,
    reference: Path | None = None,
    redux: Path | None = None,
) -> dict[str, Path]:
    """Return flag -> file for the pictures that were given."""
    files = {"--init-img": init, "--mask": mask, "--control-image": control, "--ref-image": reference}
    files |= {"--redux-image": redux}
    return {flag: file for flag, file in files.items() if file is not None}
