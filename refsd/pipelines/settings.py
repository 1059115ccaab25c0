"""The user's settings, with sd-cli's names and defaults; `plan.resolve` fills in the rest."""

import math
import re
from typing import NamedTuple

from refsd.caches import CacheSettings, read_cache
from refsd.circular import CircularAxes
from refsd.models.vae.tiling import Tiling
from refsd.numerics.errors import BadInput
from refsd.pipelines.guidance_rule import GuidanceRule
from refsd.pipelines.options import default


class Settings(NamedTuple):
    """Settings of txt2img. None means the default of the family or the convention.

    width, height:   pixels; 0: as the first conditioning image, else 512
    sampler:         one of sampling.names()
    schedule, rng:   names in SCHEDULES or FLOW_SCHEDULES, and in RNGS
    cfg_scale:       guidance scale; 1: the negative prompt has no effect
    clip_skip:       as the engine counts it; in stable-diffusion.cpp 1 is the last layer
    eta:             noise of an ancestral sampler
    sampler_rng:     generator of the noise between steps; None: the stream of the initial noise continues
    sigmas:          steps + 1 sigmas that replace the schedule's
    tiling:          tiles of the decoder; None: no tiles
    circular:        edges of the picture that wrap around
    like:            key of CONVENTIONS
    guidance:        input of a network that embeds guidance
    guidance_rule:   guidance beyond its scales
    flow_shift:      replaces the family's shift; for FLUX.1 it is mu
    prediction:      prediction type of a UNet
    strength:        share of the schedule by which an initial image is redrawn
    image_cfg_scale: guidance scale of the image to edit
    qwen_image_layers: layers that Qwen-Image-Layered takes the picture to edit apart into
    control_strength: factor of a ControlNet's output
    control_start, control_end: share of the steps before which, and behind which, a ControlNet adds nothing
    control_type:    kind of the control image, for a ControlNet that reads several
    ip_scale:        factor of what an IP-Adapter adds
    cache:           what skips work in some steps; None: every step is computed
    seed:            seed of the first picture; the following pictures of a batch count up from it
    """

    prompt: str
    negative_prompt: str = default("Settings.negative_prompt")
    width: int = default("Settings.width")
    height: int = default("Settings.height")
    steps: int | None = default("Settings.steps")
    cfg_scale: float | None = default("Settings.cfg_scale")
    sampler: str | None = default("Settings.sampler")
    schedule: str | None = default("Settings.schedule")
    rng: str | None = default("Settings.rng")
    clip_skip: int | None = None
    eta: float | None = default("Settings.eta")
    sampler_rng: str | None = default("Settings.sampler_rng")
    sigmas: tuple[float, ...] | None = None
    tiling: Tiling | None = None
    circular: CircularAxes = CircularAxes()
    like: str = default("Settings.like")
    guidance: float | None = default("Settings.guidance")
    guidance_rule: GuidanceRule = GuidanceRule()
    flow_shift: float | None = default("Settings.flow_shift")
    prediction: str | None = default("Settings.prediction")
    strength: float = default("Settings.strength")
    image_cfg_scale: float | None = default("Settings.image_cfg_scale")
    qwen_image_layers: int | None = default("Settings.qwen_image_layers")
    control_strength: float = default("Settings.control_strength")
    control_start: float = default("Settings.control_start")
    control_end: float = default("Settings.control_end")
    control_type: str | None = default("Settings.control_type")
    ip_scale: float = default("Settings.ip_scale")
    cache: CacheSettings | None = None
    seed: int = default("Settings.seed")
    batch_count: int = default("Settings.batch_count")


def read_sigmas(text: str | None) -> tuple[float, ...] | None:
    """Read numbers, as in 14.61,7.8,3.5,0; None: none are given. Raises BadInput for malformed text."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise BadInput(f"--sigmas {text[:60]}: expected numbers and commas, as 14.61,7.8,3.5,0") from None


def read_cache_mode(mode: str | None, options: str) -> CacheSettings | None:
    """Read --cache-mode and --cache-option. Raises BadInput as `read_cache` does, and without a mode."""
    if mode is None and options:
        raise BadInput(f"--cache-option {options[:60]}: give the cache with --cache-mode")
    return None if mode is None else read_cache("--cache-mode", mode, options)


_INTEGER, _DECIMAL = r"\d{1,9}", r"(?:\d+\.?\d*|\.\d+)"


def read_tiling(size: str | None, relative: str | None, overlap: float) -> Tiling:
    """Read --vae-tile-size 32x24 (columns, rows) or 32, --vae-relative-tile-size 0.5x2 or 0.5, --vae-tile-overlap.

    Raises BadInput for malformed text, or an overlap that is not finite.
    """
    if not math.isfinite(overlap):
        raise BadInput(f"--vae-tile-overlap {overlap}: expected 0 to 0.5")
    size_x, size_y = _pair("--vae-tile-size", size, _INTEGER, "32 or 32x24")
    relative_x, relative_y = _pair("--vae-relative-tile-size", relative, _DECIMAL, "0.5 or 0.5x2")
    return Tiling(int(size_x), int(size_y), overlap, relative_x, relative_y)


def _pair(flag: str, text: str | None, number: str, example: str) -> tuple[float, float]:
    if text is None:
        return 0, 0
    found = re.fullmatch(f"({number})(?:x({number}))?", text, re.ASCII)
    values = [float(value) for value in (found[1], found[2] or found[1])] if found else [math.inf]
    if not all(map(math.isfinite, values)):
        raise BadInput(f"{flag} {text[:60]}: expected a number or two, {example}")
    return values[0], values[1]
