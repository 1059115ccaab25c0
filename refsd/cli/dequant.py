"""refsd dequant: expand the blocks of a GGUF file."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Type(StrEnum):
    f32 = "f32"
    f16 = "f16"


def register(app: typer.Typer) -> None:
    app.command()(dequant)


def dequant(
    file: Annotated[Path, typer.Argument(help="A .gguf file.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A .safetensors, .npz or (one tensor) .npy file.")],
    type: Annotated[Type, typer.Option(help="What blocks become: f32 is exact, f16 is rounded.")] = Type.f32,
) -> None:
    """Expand a GGUF file's blocks, bit for bit as gguf-py does, and write them as plain numbers.

    Tensors that are not packed into blocks stay as they are. Names and shapes stay too.
    """
    from refsd.cli.bar import bar
    from refsd.golden.output_file import Outputs
    from refsd.weights.dequantize import Expansion

    expansion = Expansion(file, type.value)
    expansion.check_name(output)
    Outputs().add("--output", output)
    with bar(f"{output}", expansion.nbytes) as advance:
        expansion.write(output, advance)
