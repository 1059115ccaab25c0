"""What a picture is made from, under sd-cli's names and with its defaults."""

import itertools
import math
from typing import NamedTuple

from refsd.golden.errors import BadInput
from refsd.models.vae_tiling import Tiling
from refsd.pipelines import sampling
from refsd.samplers.schedules import SCHEDULES
from refsd.seams import Seams


class Settings(NamedTuple):
    """
    width, height:  pixels, multiples of size_multiple()
    sampler:        one of sampling.names()
    schedule, rng:  names in the tables of refsd.samplers
    cfg_scale:      1 leaves the negative prompt out
    clip_skip:      1 takes the last layer
    eta:            of an ancestral sampler; None is its default
    sampler_rng:    of the noise between the steps; None goes on drawing from the first noise's
    sigmas:         to run instead of a schedule's, as many as steps + 1
    tiling:         how the latent is cut to be decoded; None decodes it whole
    seams:          which edges of the picture meet
    """

    prompt: str
    negative_prompt: str = ""
    width: int = 512
    height: int = 512
    steps: int = 20
    cfg_scale: float = 7.0
    sampler: str = "euler_a"
    schedule: str = "discrete"
    rng: str = "cuda"
    clip_skip: int = 1
    eta: float | None = None
    sampler_rng: str | None = None
    sigmas: tuple[float, ...] | None = None
    tiling: Tiling | None = None
    seams: Seams = Seams()


def check(settings: Settings, batch_count: int = 1) -> None:
    """Raises BadInput for a setting out of range; sizes are another matter (size_multiple)."""
    sampling.method(settings.sampler, settings.eta)
    if settings.schedule not in SCHEDULES:
        raise BadInput(f"--scheduler {settings.schedule}: expected one of {', '.join(SCHEDULES)}")
    sampling.check_rng("rng", settings.rng)
    if settings.sampler_rng is not None:
        sampling.check_rng("sampler-rng", settings.sampler_rng)
    if settings.sigmas is not None:
        _check_sigmas(settings.sigmas)
    ranges = {
        "width": (settings.width, 1, 4096),
        "height": (settings.height, 1, 4096),
        "steps": (settings.steps, 1, 1000),
        "batch-count": (batch_count, 1, 1000),
    }
    for flag, (value, low, high) in ranges.items():
        if not low <= value <= high:
            raise BadInput(f"--{flag} {value}: expected {low} to {high}")
    if not math.isfinite(settings.cfg_scale):
        raise BadInput(f"--cfg-scale {settings.cfg_scale}: expected a finite number")
    for flag, text in (("prompt", settings.prompt), ("negative-prompt", settings.negative_prompt)):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise BadInput(f"--{flag}: expected text, found bytes that are not UTF-8")


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
