"""refsd quality: what each storage type costs a model."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(quality)


def quality(
    model: Annotated[Path, typer.Argument(help="Checkpoint: a .safetensors or .gguf file, or a diffusers folder.")],
    types: Annotated[str, typer.Option(help="Block types, with commas.")] = "q8_0,q6_k,q5_k,q4_k,q4_0,q3_k",
    component: Annotated[str, typer.Option(help="diffusion, clip_l, t5xxl, ...")] = "diffusion",
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", "-i", help="Arguments by name, as for `refsd forward`; without it, drawn ones."),
    ] = None,
    lora: Annotated[
        list[str] | None, typer.Option(help="FILE[:STRENGTH]: an adapter to apply beside the weights.")
    ] = None,
    lines: Annotated[int, typer.Option(min=0, help="Layers to list for each type, the costliest first.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print every layer as JSON.")] = False,
) -> None:
    """Show what each storage type costs: the error of the output, and the layers whose products suffer most.

    The file's matrices are quantized as ggml does, without an importance matrix and with one collected from the
    same inputs, and the component runs in float32. Drawn inputs have deviation 1; for those of a real prompt give
    --inputs. Layers whose rows are no whole blocks stay as they are: the table counts those that were quantized.
    """
    import json

    import numpy as np

    from refsd.components import load, resolve
    from refsd.diagnosis.quality import decibels, measure
    from refsd.diagnosis.ranges import drawn_inputs
    from refsd.loras import open_loras
    from refsd.numerics.named import named
    from refsd.progress import compile_progress
    from refsd.weights import open_checkpoint, open_weights

    checkpoint = open_checkpoint(model)
    part = resolve(checkpoint, component)
    m, params = load(checkpoint, part, named("float32", []), loras=open_loras(lora or [], checkpoint))
    given = {name: np.asarray(t.values()) for name, t in open_weights(inputs).items()} if inputs else None
    rows = []
    if not as_json:
        start = f"{'type':8} {'matrix':>6} {'layers':>6} {'bits':>6}"
        typer.echo(f"{start} {'error':>9} {'dB':>6} {'largest':>9}  costliest layers")
    with compile_progress():
        for row in measure(part, m, given or drawn_inputs(part, m), params, types.split(",")):
            rows.append(row._asdict())
            if not as_json:
                worst = ", ".join(f"{name} {error:.2g}" for name, error in list(row.layers.items())[:lines])
                matrix = "yes" if row.importance else "no"
                start = f"{row.type:8} {matrix:>6} {len(row.layers):6} {row.bits:6.3g}"
                errors = f"{row.error:9.3g} {decibels(row.error):6.1f} {row.largest:9.3g}"
                typer.echo(f"{start} {errors}  {worst}")
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
