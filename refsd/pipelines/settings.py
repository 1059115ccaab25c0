"""What a picture is made from, under sd-cli's names and with its defaults."""

import math
from typing import NamedTuple

from refsd.golden.errors import BadInput
from refsd.samplers import SAMPLERS
from refsd.samplers.noise import RNGS
from refsd.samplers.schedules import SCHEDULES


class Settings(NamedTuple):
    """
    width, height:  pixels, multiples of size_multiple()
    sampler, schedule, rng: names in the tables of refsd.samplers
    cfg_scale:      1 leaves the negative prompt out
    clip_skip:      1 takes the last layer
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


def check(settings: Settings, batch_count: int = 1) -> None:
    """Raises BadInput for a setting out of range; sizes are another matter (size_multiple)."""
    tables = {"sampling-method": SAMPLERS, "scheduler": SCHEDULES, "rng": RNGS}
    named = {"sampling-method": settings.sampler, "scheduler": settings.schedule, "rng": settings.rng}
    for flag, name in named.items():
        if name not in tables[flag]:
            raise BadInput(f"--{flag} {name}: expected one of {', '.join(tables[flag])}")
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
