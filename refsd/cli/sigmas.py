"""refsd sigmas: print the noise levels of an engine's sampling run."""

import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from refsd.conventions.pictures import Convention
    from refsd.families.family import Variant


class Like(StrEnum):
    sdcpp = "sdcpp"
    comfyui = "comfyui"
    a1111 = "a1111"
    forge = "forge"
    diffusers = "diffusers"
    k_diffusion = "k-diffusion"


_TOKEN = 16  # pixels a side, in every family whose shift depends on the number of tokens
# In these engines --strength drops the first entries of a custom sigma list; others need a schedule.
_CUTS_A_LIST = ("sdcpp", "diffusers", "k-diffusion")


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
    model: Annotated[
        str | None,
        typer.Option(help="A flow model by name, as flux-dev or flux2-klein: its levels for this size and steps."),
    ] = None,
    width: Annotated[int, typer.Option("--width", "-W", min=16, max=16384, help="With --model: pixels.")] = 1024,
    height: Annotated[int, typer.Option("--height", "-H", min=16, max=16384, help="With --model: pixels.")] = 1024,
    compare: Annotated[
        Path | None,
        typer.Option(
            help="Judge your own sigmas for these settings: a .json list, or a .npy or .safetensors of `sigmas`."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the sigmas of an engine's schedule, and the timestep that the network receives at each.

    Levels are those of SD 1.x, 2.x and SDXL, or with --flow-shift those of a rectified flow (SD 3). Engines use the
    same name for different schedules: compare `--like comfyui --scheduler kl_optimal` with `--like forge`. With
    --like sdcpp, diffusers or k-diffusion, --strength drops the first entries of custom sigmas.

    With --model they are those of `txt2img` for that model, in sdcpp or diffusers. Many flow models shift them by
    the number of tokens, which --width and --height give, and FLUX.2 by that of the steps too.

    With --compare FILE your own levels are judged: exit code 1, the first wrong one and what explains it.
    """
    if model is not None:
        if custom is not None or sdxl:
            _refuse_with_model("--sigmas" if custom is not None else "--sdxl")
        found = _of_model(model, like, scheduler, sampler, steps, strength, flow_shift, (width, height))
        name, values, levels, first, tokens = found
        if compare is not None:
            _compare(compare, like, name, values, levels, steps, strength, tokens)
        else:
            _print(like, json, name, values, levels, first)
        return
    from refsd.conventions import CARDS
    from refsd.numerics.errors import BadInput
    from refsd.samplers.levels import SD_LEVELS, FlowLevels, Levels
    from refsd.samplers.schedules.sigmas import custom as parse_custom

    card = CARDS[like.value].of_sdxl() if sdxl else CARDS[like.value]
    known: Levels = SD_LEVELS if flow_shift is None else FlowLevels(flow_shift)
    usual = card.schedule if flow_shift is None else card.flow_schedule or card.schedule
    name = "custom" if custom is not None else scheduler or usual
    if custom is None and name not in card.rules(known):
        raise BadInput(
            f"--scheduler {name}: {like.value} has {', '.join(card.rules(known))}; for the levels of a model "
            "that shifts them by its picture's size name it with --model"
        )
    try:
        if custom is not None:
            values = parse_custom(custom)
            if strength < 1 and like.value not in _CUTS_A_LIST:
                raise ValueError(f"{like.value} has no list of sigmas that --strength {strength} would cut")
            if strength < 1:
                steps, whole = len(values) - 1, values
                values = card.truncation_of(known)(steps, strength, lambda n: whole)
        else:
            values = card.sigmas(steps, name, sampler, known, strength)
    except ValueError as error:
        raise BadInput(
            f"--sigmas: {error}" if custom is not None else f"--scheduler {name}, --steps {steps}: {error}"
        ) from None
    if len(values) < 2:
        raise BadInput(f"--strength {strength}: {like.value} runs no step of {steps}; expected more")
    levels = card.levels(SD_LEVELS.sigmas) if flow_shift is None else known
    first = float(values[0]) if flow_shift is not None else card.first(float(values[0]), float(known.sigmas[-1]))
    if compare is not None:
        _compare(compare, like, name, values, levels, steps, strength)
    else:
        _print(like, json, name, values, levels, first)


def _compare(own: Path, like: Like, name: str, values, levels, steps: int, strength: float, tokens: int = 4096):
    from refsd.cli.compare_levels import compare_levels

    params = {"engine": like.value, "schedule": name, "steps": steps, "strength": strength, "tokens": tokens}
    compare_levels(own, values, params | {"shift": getattr(levels, "shift", 3.0)})


def _refuse_with_model(flag: str) -> None:
    from refsd.numerics.errors import BadInput

    raise BadInput(f"--model: {flag} does not go with it; leave one of them out")


def _of_model(
    model: str,
    like: Like,
    scheduler: str | None,
    sampler: str,
    steps: int,
    strength: float,
    flow_shift: float | None,
    size: tuple[int, int],
):
    """Return what `txt2img` takes for a flow model. -> schedule, sigmas, levels, first noise's factor, tokens"""
    from refsd.conventions import CONVENTIONS
    from refsd.families import VARIANTS
    from refsd.golden.wording import did_you_mean
    from refsd.numerics.errors import BadInput
    from refsd.pipelines.noise_levels import scheduled, truncated

    flows = {name: variant for name, variant in VARIANTS.items() if variant.flow is not None}
    if model not in flows:
        raise BadInput(f"--model {model}: no flow model{did_you_mean(model, flows)}; there are {', '.join(flows)}")
    known = {name: of for name, of in CONVENTIONS.items() if flows[model].known_to(of)}
    if like.value not in known:
        raise BadInput(f"--model {model}: refsd has its rules of {' and '.join(known)}, not of {like.value}")
    convention, variant = known[like.value], flows[model]
    flow = variant.flow
    assert flow is not None
    name = scheduler or convention.default_schedule(sampler, variant.schedule)
    schedules = convention.known_schedules(sdxl=False, flow=True)
    if name not in schedules:
        raise BadInput(
            f"--scheduler {name}: with --model there are {', '.join(schedules)}; leave it out for the model's own"
        )
    tokens = _tokens(convention, variant, size)

    def levels_of(steps: int):
        shift = convention.row(flow.shift)(tokens, steps) if flow_shift is None else flow.from_flag(flow_shift)
        return flow.levels_of(convention.name, flow_shift is not None)(shift)

    values = truncated(
        name,
        steps,
        strength,
        convention.flow_truncation,
        lambda n: scheduled(name, n, levels_of(n), variant.title, schedules),
    )
    first = 1.0 if convention.family_rows in flow.of_pipeline and strength == 1 else float(values[0])
    return name, values, levels_of(steps), first, tokens


def _tokens(convention: "Convention", variant: "Variant", size: tuple[int, int]) -> int:
    """Count the tokens of a picture whose sides the engine rounds to multiples of what the model takes."""
    side = _TOKEN * (2 if variant.flow and variant.flow.side == 1 else 1)
    down = variant.rounds_size_down and not convention.rounds_size_up
    wide, high = (max(1, edge // side if down else -(-edge // side)) * side // _TOKEN for edge in size)
    return wide * high


def _print(like: Like, as_json: bool, name: str, values, levels, first: float) -> None:
    from refsd.samplers.levels import FlowLevels

    times = [levels.to_t(float(sigma)) if sigma > 0 else None for sigma in values]
    shift = levels.shift if isinstance(levels, FlowLevels) else None
    if as_json:
        import json as encoder

        record = {"like": like.value, "scheduler": name, "sigmas": values.tolist(), "timesteps": times}
        typer.echo(encoder.dumps({**record, "first_noise_times": first, "shift": shift}))
        return
    shifted = "" if shift is None else f"; shift {shift:.6g}, mu {math.log(shift):.6g}"
    typer.echo(f"{like.value}, {name}: {len(values) - 1} steps; noise * {first:.7g} at first{shifted}")
    typer.echo("step         sigma   timestep")
    for i, (sigma, t) in enumerate(zip(values, times, strict=True)):
        typer.echo(f"{i:4}  {sigma:12.8f}  {'' if t is None else f'{t:9.4f}'}".rstrip())
