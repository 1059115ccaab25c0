"""refsd forward: run one component of a model once, on tensors from a file."""

from pathlib import Path
from typing import Annotated

import typer

from refsd.cli.numerics import Profile
from refsd.cli.parts import (
    CHECKPOINT,
    T5XXL,
    ClipG,
    ClipL,
    ControlNet,
    DiffusionModel,
    IPAdapter,
    Llm,
    LoraRule,
    Taesd,
    Vae,
    part_files,
)


def _list_components(wanted: bool) -> None:
    if wanted:
        from refsd.components import components_help

        typer.echo(components_help())
        raise typer.Exit()


def forward(
    component: Annotated[str, typer.Option(help="diffusion, clip_l, vae-decoder, ...: --components lists them.")],
    inputs: Annotated[Path, typer.Option("--inputs", "-i", help="Safetensors file with the arguments by name.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A .safetensors, .npz or .npy file for the outputs.")],
    model: Annotated[
        Path | None,
        typer.Argument(help=CHECKPOINT),
    ] = None,
    diffusion_model: DiffusionModel = None,
    vae: Vae = None,
    taesd: Taesd = None,
    clip_l: ClipL = None,
    clip_g: ClipG = None,
    t5xxl: T5XXL = None,
    llm: Llm = None,
    control_net: ControlNet = None,
    ip_adapter: IPAdapter = None,
    numerics: Profile = "float64",
    deviation: Annotated[
        list[str] | None, typer.Option(help="A known deviation of an engine to imitate. May be repeated.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE: a parameter that the file does not contain, such as clip_skip=2."),
    ] = None,
    lora: Annotated[
        list[str] | None,
        typer.Option(help="FILE[:STRENGTH]: an adapter to apply at run time. May be repeated."),
    ] = None,
    lora_rule: LoraRule = "trainer",
    taps: Annotated[Path | None, typer.Option(help="A .safetensors or .npz file for every block's output.")] = None,
    tap: Annotated[str, typer.Option(help="Glob that selects the taps to write.")] = "*",
    tap_ops: Annotated[bool, typer.Option("--tap-ops", help="Also tap every operation, not only blocks.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the outputs' shapes and statistics as JSON.")] = False,
    components: Annotated[
        bool,
        typer.Option(
            "--components",
            callback=_list_components,
            is_eager=True,
            help="List the components with their inputs, outputs and other names, and exit.",
        ),
    ] = False,
) -> None:
    """Run one component of a model once on the tensors of a file."""
    from refsd.commands.forward import ForwardRequest, run
    from refsd.weights.model_files import model_path

    settings = (numerics, deviation or [], param or [], taps, tap, tap_ops, json, lora or [], lora_rule)
    parts = part_files(diffusion_model, vae, taesd, clip_l, clip_g, t5xxl, llm, control_net, ip_adapter)
    model = model and model_path(model)
    run(ForwardRequest(model, parts, component, inputs, out, *settings))
