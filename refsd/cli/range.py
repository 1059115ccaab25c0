"""refsd range: the largest values inside a model, against float16's limit."""

from pathlib import Path
from typing import Annotated

import typer

_LINES = 20


def register(app: typer.Typer) -> None:
    app.command("range")(range_)


def range_(
    model: Annotated[Path, typer.Argument(help="Checkpoint: a .safetensors or .gguf file, or a diffusers folder.")],
    component: Annotated[str, typer.Option(help="diffusion, clip_l, vae-decoder, ...")] = "diffusion",
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", "-i", help="Arguments by name, as for `refsd forward`; without it, drawn ones."),
    ] = None,
    lines: Annotated[int, typer.Option(min=1, help="Layers to list, the largest first.")] = _LINES,
    as_json: Annotated[bool, typer.Option("--json", help="Print every layer as JSON.")] = False,
) -> None:
    """Show the largest value of each layer's output, and of its product before the bias, against 65504.

    An engine that stores activations in float16 overflows above 65504. Values are the reference's, in float32.
    Drawn inputs have deviation 1; for the values of a real prompt give --inputs, such as a dump of your engine.

    Exit code 0: all fit. 1: some layer overflows. 2: bad input.
    """
    import json

    import numpy as np

    from refsd.components import forward, load, resolve
    from refsd.diagnosis.ranges import FLOAT16, Ranges, drawn_inputs, in_order
    from refsd.golden.wording import counted
    from refsd.numerics.named import named
    from refsd.progress import compile_progress
    from refsd.weights import open_checkpoint, open_weights

    checkpoint = open_checkpoint(model)
    part = resolve(checkpoint, component)
    m, params = load(checkpoint, part, named("float32", []))
    given = {name: np.asarray(t.values()) for name, t in open_weights(inputs).items()} if inputs else None
    m.taps = ranges = Ranges(m)
    with compile_progress():
        forward(part, m, given or drawn_inputs(part, m), params, str(inputs or "drawn inputs"))
    found = in_order(ranges.found)
    over = [one for one in found if not one.worst <= FLOAT16]
    if as_json:
        typer.echo(json.dumps([{**one._asdict(), "overflows": one in over} for one in found], indent=1))
    else:
        share = f"{found[0].name} reaches {found[0].worst:.4g}, {found[0].worst / FLOAT16:.2%} of 65504"
        head = f"{counted(len(over), 'layer')} overflow float16: " if over else "nothing overflows float16: "
        typer.echo(head + share)
        typer.echo(f"{'largest':>10} {'product':>10} {'of 65504':>9}  layer")
        for one in found[:lines]:
            product = "" if one.product is None else f"{one.product:.4g}"
            typer.echo(f"{one.largest:10.4g} {product:>10} {one.worst / FLOAT16:9.2%}  {one.name}")
    if over:
        raise typer.Exit(1)
