"""refsd run-onnx: evaluate an ONNX graph in float64."""

from pathlib import Path
from typing import Annotated

import typer


def run_onnx(
    model: Annotated[Path | None, typer.Argument(help="An .onnx file.", show_default=False)] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--inputs",
            "-i",
            help="FILE of tensors by name; a folder test_data_set_N; NAME=FILE.npy; NAME=recipe: drawn numbers; "
            "recipe: all that are still missing. May be repeated.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A .safetensors, .npz or .npy file for the outputs.")
    ] = None,
    taps: Annotated[
        Path | None, typer.Option(help="A .safetensors or .npz file for every node's outputs, by their names.")
    ] = None,
    tap: Annotated[str, typer.Option(help="Glob that selects the taps to write.")] = "*",
    numerics: Annotated[str, typer.Option(help="float64: the truth; float32: an honest run.")] = "float64",
    exact: Annotated[
        bool, typer.Option("--exact", help="Ignore casts to float16 and bfloat16 instead of rounding.")
    ] = False,
    dim: Annotated[
        list[str] | None, typer.Option(help="NAME=N: the length of a free axis of drawn inputs. May be repeated.")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(help="GB that values may take at once.", show_default="half of the memory")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long it may take.")] = 3600,
    operators: Annotated[bool, typer.Option("--operators", help="List the operators that refsd runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print shapes and statistics as JSON.")] = False,
) -> None:
    """Evaluate an ONNX graph in float64: the truth of a graph that another tool wrote.

    Floats of every type are computed in float64. A Cast to a type of 16 bits or fewer rounds, because the graph
    says so, unless --exact is given; quantizations round in any case. Judge an engine's outputs against it:

        refsd run-onnx unet.onnx -i recipe -o truth.safetensors --taps taps.safetensors
        refsd run-onnx unet.onnx -i recipe -o honest.safetensors --numerics float32
        refsd compare engine.safetensors truth.safetensors --honest honest.safetensors

    A file is trusted with nothing: no external data outside its folder, no values beyond --memory, no node
    after --seconds, and no more than 200,000 nodes, iterations of loops included.

    Exit code 0: done. 2: bad input, a damaged file, an operator that refsd does not run.
    """
    from refsd.golden.wording import needing
    from refsd.numerics.errors import BadInput

    with needing(["onnx"], "onnx", "run-onnx"):
        from refsd.commands import run_onnx as work

    if operators:
        typer.echo("\n".join(work.operators()))
        return
    if model is None:
        raise BadInput("name an .onnx file")
    request = work.Request(
        model, inputs or [], out, taps, tap, numerics, exact, dim or [], memory, seconds, as_json
    )
    work.run(request)
