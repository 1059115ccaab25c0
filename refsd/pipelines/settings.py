"""What a picture is made from, under sd-cli's names and with its defaults."""

import itertools
import math
from typing import NamedTuple

from refsd.families.family import ENGINES
from refsd.models.vae_tiling import Tiling
from refsd.numerics.errors import BadInput
from refsd.pipelines import sampling
from refsd.samplers.schedules import SCHEDULES
from refsd.samplers.schedules.flow import FLOW_SCHEDULES
from refsd.seams import Seams


class Settings(NamedTuple):
    """None is the family's own, or the engine's (`txt2img.filled`).

    width, height:   pixels, multiples of size_multiple(): see drawn_size; 0: as large as a given picture, else 512
    sampler:         one of sampling.names()
    schedule, rng:   names in SCHEDULES and RNGS
    cfg_scale:       1 leaves the negative prompt out
    clip_skip:       as the engine counts it; in stable-diffusion.cpp 1 takes the last layer
    eta:             of an ancestral sampler; None is its default
    sampler_rng:     of the noise between the steps; None goes on drawing from the first noise's
    sigmas:          to run instead of a schedule's, as many as steps + 1
    tiling:          how the latent is cut to be decoded; None decodes it whole
    seams:           which edges of the picture meet
    like:            whose conventions
    guidance:        of a network that embeds one
    flow_shift:      instead of the family's; for Flux its mu
    prediction:      of a UNet
    strength:        share of the schedule that a given picture is drawn over; 1: all of it
    image_cfg_scale: of a picture to edit
    control_strength: factor of what a ControlNet adds
    """

    prompt: str
    negative_prompt: str = ""
    width: int = 0
    height: int = 0
    steps: int | None = None
    cfg_scale: float | None = None
    sampler: str | None = None
    schedule: str | None = None
    rng: str | None = None
    clip_skip: int | None = None
    eta: float | None = None
    sampler_rng: str | None = None
    sigmas: tuple[float, ...] | None = None
    tiling: Tiling | None = None
    seams: Seams = Seams()
    like: str = "sdcpp"
    guidance: float | None = None
    flow_shift: float | None = None
    prediction: str | None = None
    strength: float = 0.75
    image_cfg_scale: float | None = None
    control_strength: float = 0.9


def check(settings: Settings, batch_count: int = 1) -> None:
    """Raises BadInput for a setting out of range; what the family says to it is another matter (txt2img.filled)."""
    if settings.like not in ENGINES:
        raise BadInput(f"--like {settings.like}: expected one of {', '.join(ENGINES)}")
    sampling.method(settings.sampler or "euler", settings.eta, flow=None)
    if settings.schedule is not None and settings.schedule not in names():
        raise BadInput(f"--scheduler {settings.schedule}: expected one of {', '.join(names())}")
    for flag, name in (("rng", settings.rng), ("sampler-rng", settings.sampler_rng)):
        if name is not None:
            sampling.check_rng(flag, name)
    if settings.sigmas is not None:
        _check_sigmas(settings.sigmas)
    ranges = {
        "width": (settings.width or None, 1, 4096),
        "height": (settings.height or None, 1, 4096),
        "steps": (settings.steps, 1, 1000),
        "batch-count": (batch_count, 1, 1000),
        "cfg-scale": (settings.cfg_scale, -math.inf, math.inf),
        "img-cfg-scale": (settings.image_cfg_scale, -math.inf, math.inf),
        "guidance": (settings.guidance, 0, 1000),
        "flow-shift": (settings.flow_shift, -100, 100),
        "strength": (settings.strength, 0, 1),
        "control-strength": (settings.control_strength, -100, 100),
    }
    for flag, (value, low, high) in ranges.items():
        if value is not None and not (low <= value <= high and math.isfinite(value)):
            between = "a finite number" if low == -math.inf else f"{low} to {high}"
            raise BadInput(f"--{flag} {value}: expected {between}")
    for flag, text in (("prompt", settings.prompt), ("negative-prompt", settings.negative_prompt)):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise BadInput(f"--{flag}: expected text, found bytes that are not UTF-8")


def names() -> list[str]:
    """Of schedules; a UNet has no use for a flow's, which `txt2img.sigmas` says."""
    return [*SCHEDULES, *FLOW_SCHEDULES]


def read_sigmas(text: str) -> tuple[float, ...]:
    """14.61,7.8,3.5,0 -> numbers. Raises BadInput for another text."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise BadInput(f"--sigmas {text[:60]}: expected numbers and commas, as 14.61,7.8,3.5,0") from None


def _check_sigmas(sigmas: tuple[float, ...]) -> None:
    levels = [*sigmas]
    falling = len(levels) > 1 and all(a > b for a, b in itertools.pairwise(levels))
    if not (falling and levels[-1] >= 0 and math.isfinite(levels[0])):
        raise BadInput("--sigmas: expected two numbers or more, falling, the last not below 0: 14.61,7.8,3.5,0")
