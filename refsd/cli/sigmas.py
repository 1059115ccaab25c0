"""refsd sigmas: print the noise levels of an engine's sampling run."""

from enum import StrEnum
from typing import Annotated

import typer


class Like(StrEnum):
    sdcpp = "sdcpp"
    comfyui = "comfyui"
    a1111 = "a1111"
    forge = "forge"
    diffusers = "diffusers"
    k_diffusion = "k-diffusion"


# In these engines --strength drops the first entries of a custom sigma list; others need a schedule.
_CUTS_A_LIST = ("sdcpp", "diffusers", "k-diffusion")


def register(app: typer.Typer) -> None:
    app.command()(sigmas)


def sigmas(
    steps: Annotated[int, typer.Option(min=1, max=1000, help="Sampling steps.")] = 20,
    like: Annotated[Like, typer.Option(help="The engine whose sigmas to print.")] = Like.sdcpp,
    scheduler: Annotated[
        str | None, typer.Option(help="The schedule, by the engine's own name. Default: the engine's.")
    ] = None,
    sampler: Annotated[
        str, typer.Option(help="The sampler: some engines drop the last sigma above 0 for some samplers.")
    ] = "euler",
    strength: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="img2img: the share of the schedule to run.")
    ] = 1.0,
    custom: Annotated[
        str | None, typer.Option("--sigmas", "--custom", help="Custom sigmas instead of a schedule: 14.6,7,3,0.")
    ] = None,
    sdxl: Annotated[
        bool, typer.Option("--sdxl", help="For schedules with tables: use SDXL's, not SD 1.x's.")
    ] = False,
    flow_shift: Annotated[
        float | None,
        typer.Option(min=0.01, max=100.0, help="Use a rectified flow's levels with this shift; SD 3: 3."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the sigmas of an engine's schedule, and the timestep that the network receives at each.

    Levels are those of SD 1.x, 2.x and SDXL, or with --flow-shift those of a rectified flow (SD 3). Engines use the
    same name for different schedules: compare `--like comfyui --scheduler kl_optimal` with `--like forge`. With
    --like sdcpp, diffusers or k-diffusion, --strength drops the first entries of custom sigmas.
    """
    from refsd.numerics.errors import BadInput
    from refsd.samplers.conventions import CARDS
    from refsd.samplers.levels import SD_LEVELS, FlowLevels, Levels
    from refsd.samplers.schedules.sigmas import custom as parse_custom

    card = CARDS[like.value].of_sdxl() if sdxl else CARDS[like.value]
    known: Levels = SD_LEVELS if flow_shift is None else FlowLevels(flow_shift)
    usual = card.schedule if flow_shift is None else card.flow_schedule or card.schedule
    name = "custom" if custom is not None else scheduler or usual
    if custom is None and name not in card.rules(known):
        raise BadInput(f"--scheduler {name}: {like.value} has {', '.join(card.rules(known))}")
    try:
        if custom is not None:
            values = parse_custom(custom)
            if strength < 1 and like.value not in _CUTS_A_LIST:
                raise ValueError(f"{like.value} has no list of sigmas that --strength {strength} would cut")
            if strength < 1:
                steps, whole = len(values) - 1, values
                values = card.truncation(steps, strength, lambda n: whole)
        else:
            values = card.sigmas(steps, name, sampler, known, strength)
    except ValueError as error:
        raise BadInput(
            f"--sigmas: {error}" if custom is not None else f"--scheduler {name}, --steps {steps}: {error}"
        ) from None
    if len(values) < 2:
        raise BadInput(f"--strength {strength}: {like.value} runs no step of {steps}; expected more")
    levels = card.levels(SD_LEVELS.sigmas) if flow_shift is None else known
    told = [levels.to_t(float(sigma)) if sigma > 0 else None for sigma in values]
    first = float(values[0]) if flow_shift is not None else card.first(float(values[0]), float(known.sigmas[-1]))
    if json:
        import json as encoder

        record = {"like": like.value, "scheduler": name, "sigmas": values.tolist(), "timesteps": told}
        typer.echo(encoder.dumps({**record, "first_noise_times": first}))
        return
    typer.echo(f"{like.value}, {name}: {len(values) - 1} steps; noise * {first:.7g} at first")
    typer.echo("step         sigma   timestep")
    for i, (sigma, t) in enumerate(zip(values, told, strict=True)):
        typer.echo(f"{i:4}  {sigma:12.8f}  {'' if t is None else f'{t:9.4f}'}".rstrip())
