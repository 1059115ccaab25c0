"""What refsd golden show says of an operation, a stage, and trajectories."""

import typer

from refsd.cli.json_output import print_json


def show_operation(name: str, json: bool) -> None:
    """Print the arguments, parameters and outputs of an operation or a stage."""
    from refsd.golden.operations import OPERATIONS, REQUIRED
    from refsd.stages import STAGES

    stage = STAGES.get(name)
    entry = OPERATIONS[name] if stage is None else stage
    params = {key: "required" if value is REQUIRED else value for key, value in entry.params.items()}
    if stage is None:
        outputs = {"y": OPERATIONS[name].output}
    else:
        outputs = {output: of.shape for output, of in stage.outputs.items()}
    if json:
        shown = {"op": name, "what": entry.what, "inputs": dict(entry.inputs), "params": params}
        print_json(shown | {"outputs": outputs})
        return
    typer.echo(f"{name}: {entry.what}")
    for argument, shape in entry.inputs.items():
        typer.echo(f"  {argument:8} {shape}")
    for parameter, default in params.items():
        typer.echo(f"  {parameter} = {default}")
    for output, shape in outputs.items():
        typer.echo(f"  -> {output:5} {shape}")


def show_trajectory(json: bool) -> None:
    """Print the parameters of the trajectory cases with the values that cases have: samplers, schedules ..."""
    from refsd.cases import CASES

    values: dict[str, dict] = {}
    for case in CASES.values():
        for parameter, value in case.params.items() if case.op == "trajectory" else ():
            values.setdefault(parameter, {}).setdefault(str(value) if isinstance(value, list | dict) else value)
    shown = {parameter: [*of] for parameter, of in values.items()}
    if json:
        print_json({"op": "trajectory", "params": shown})
        return
    typer.echo("trajectory: every call of the model on the way from noise to a latent")
    typer.echo("  noise    [1 + draws, N, C, H, W]")
    for parameter, of in shown.items():
        typer.echo(f"  {parameter} = {', '.join(map(str, of))}")
    typer.echo("  cases: `refsd golden list --cases 'trajectory/*'`")
