"""refsd dequant: expand the blocks of a GGUF file."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Type(StrEnum):
    f32 = "f32"
    f16 = "f16"


def dequant(
    file: Annotated[Path, typer.Argument(help="A .gguf file.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A .safetensors, .npz or (one tensor) .npy file.")],
    type: Annotated[Type, typer.Option(help="Type of the expanded values: f32 is exact, f16 rounds.")] = Type.f32,
) -> None:
    """Dequantize a GGUF file, bit for bit as gguf-py does.

    Names and shapes stay the same; tensors that are not quantized are copied.
    """
    from refsd.cli.bar import bar
    from refsd.files.dequantize import Expansion
    from refsd.golden.output_file import Outputs

    expansion = Expansion(file, type.value)
    expansion.check_name(output)
    Outputs().add("--output", output)
    with bar(f"{output}", expansion.nbytes) as advance:
        expansion.write(output, advance)
