"""refsd adopt: make a case of a model that has no page."""

from pathlib import Path
from typing import Annotated

import typer


def adopt(
    source: Annotated[
        str,
        typer.Argument(
            help="FILE.py:FUNCTION that returns a torch module, or a pipeline of diffusers, and its arguments; "
            "diffusers:CLASS; the folder of a pipeline; or FILE.onnx.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.", show_default=False)],
    config: Annotated[Path | None, typer.Option(help="Of a class of diffusers: its config.json.")] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--inputs",
            "-i",
            help="Arguments by name: a file of tensors; of a graph also NAME=FILE.npy and recipe. May be repeated.",
        ),
    ] = None,
    dim: Annotated[
        list[str] | None, typer.Option(help="Of a graph: NAME=N, the length of a free axis of drawn inputs.")
    ] = None,
    own_weights: Annotated[
        bool, typer.Option("--own-weights", help="Keep the module's weights instead of drawing them by name.")
    ] = False,
    taps: Annotated[bool, typer.Option("--taps", help="List every tap with its shape.")] = False,
) -> None:
    """Make a case of a model that has no page: docs/adopt.md.

    The folder holds the graph, its inputs, its weights and the answer in float64. Taps and weights have the names
    of the module tree. Engines are then judged as on a page:

        refsd adopt mymodel.py:build -o mymodel
        refsd conform exec:./engine --cases mymodel
        refsd compare dump.safetensors mymodel

    Of a pipeline (a folder with model_index.json) each network that its run calls becomes such a folder, and what
    it does between them (noise levels, scale of latents, timestep, guidance) a case each; `--cases FOLDER` names
    all, `refsd golden show FOLDER` lists them.

    Only this command needs torch; the folder is judged without it.

    Exit code 0: done. 2: bad input, an operator that refsd does not run, a graph that is not its module.
    """
    from refsd.golden.wording import needing

    with needing(["onnx"], "adopt", "adopt"):
        from refsd.adoption.folder import rule_of
        from refsd.commands.adopt import adopt as run

    adoption = run(source, out, config, inputs or [], dim or [], own_weights)
    for made in adoption.parts:
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in made.inputs.items())
        typer.echo(
            f"{made.case} in {made.folder}: takes {listed}; {made.weights} weights, {made.numbers:,} numbers"
        )
        typer.echo(f"operations: {', '.join(f'{count} {op}' for op, count in made.operations.items())}")
        for name, distance in made.apart.items():
            typer.echo(f"{name}: torch in float64 is {distance:.2g} away")
        typer.echo(f"{len(made.taps)} taps{'' if taps else ': --taps lists them'}")
        if taps:
            for name, shape in made.taps.items():
                typer.echo(f"  {name} {list(shape)}")
    if adoption.pipeline is None:
        return
    typer.echo(f"scheduler: {adoption.pipeline.scheduler}")
    for case in adoption.pipeline.stages:
        typer.echo(rule_of(case))
    for name, reason in adoption.pipeline.refused.items():
        typer.echo(f"left out: {name}: {reason}", err=True)
