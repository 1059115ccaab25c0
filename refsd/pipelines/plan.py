"""Resolve settings, model and engine convention into a Plan: every value that decides the pictures, checked.

This module and noise_levels.py make all checks of settings, before any computation except the trial run of
`prediction_of`.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from refsd.caches import CacheSettings
from refsd.circular import CircularAxes
from refsd.conventions import CONVENTIONS
from refsd.conventions.pictures import Convention
from refsd.conventions.sampling import Truncation
from refsd.models.vae.tiling import Tiling
from refsd.numerics.errors import BadInput
from refsd.pipelines import sampling
from refsd.pipelines.cached_network import check_cache
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.guidance_rule import GuidanceRule
from refsd.pipelines.known_rules import check_known
from refsd.pipelines.noise_levels import SamplingRule, noise_levels
from refsd.pipelines.options import check_between
from refsd.pipelines.picture_size import as_tokens, check_control_type, check_images, drawn_size
from refsd.pipelines.pipeline import Pipeline
from refsd.pipelines.prediction import PREDICTIONS, prediction_of
from refsd.pipelines.scheduler_config import sample_sigmas, scheduler_config
from refsd.pipelines.settings import Settings
from refsd.samplers.levels import Levels
from refsd.samplers.parameterization import Prediction
from refsd.samplers.schedules import SCHEDULES
from refsd.samplers.schedules.flow import FLOW_SCHEDULES

NO_IMAGES = ConditioningImages()


@dataclass(frozen=True)
class Plan:
    """All values that decide the pictures, in the order of use. Fields shared with Settings have the same names.

    guided:       True if the network is also called with the negative prompt
    latent_shape: (1, C, h, w), of the denoiser's latents; (1, layers + 1, C, h, w) of a model that draws layers
    seeds:        one seed per picture
    from_image:   True if sampling starts from the latent of images.init, False if from noise alone
    first_noise:  factor of the noise in the first latents
    levels:       noise levels, and the network's timestep at each
    prediction:   key of PREDICTIONS; None for a rectified flow
    output:       what the network predicts
    custom_sigmas: True if the sigmas are the user's, False if the schedule's
    sigmas:       [n + 1], float64, falling: the noise levels of the steps
    last_scale:   factor of the last latents: 1, or diffusers' for unit variance if the last sigma is not 0
    notices:      lines for the user about settings that were changed or ignored
    """

    convention: Convention
    prompt: str
    negative_prompt: str
    guided: bool
    clip_skip: int | None
    width: int
    height: int
    latent_shape: tuple[int, ...]
    images: ConditioningImages
    rng: str
    seeds: tuple[int, ...]
    from_image: bool
    first_noise: float
    sampler: str
    method: sampling.Method
    eta: float | None
    sampler_rng: str | None
    schedule: str
    steps: int
    strength: float
    flow_shift: float | None
    custom_sigmas: bool
    sigmas: np.ndarray
    last_scale: float
    levels: Levels
    prediction: str | None
    output: Prediction
    cfg_scale: float
    image_cfg_scale: float | None
    qwen_image_layers: int | None
    guidance: float | None
    guidance_rule: GuidanceRule
    control_strength: float
    control_start: float
    control_end: float
    control_type: str | None
    ip_scale: float
    cache: CacheSettings | None
    tiling: Tiling | None
    circular: CircularAxes
    notices: tuple[str, ...]

    @property
    def like(self) -> str:
        return self.convention.name

    def record(self) -> dict[str, Any]:
        """Return every setting that decides the pictures' values, by its name in Settings, for --json."""
        apart = "tiling", "circular", "seed", "batch_count", "guidance_rule", "cache"
        same = {name: getattr(self, name) for name in Settings._fields if name not in apart}
        cache = {} if self.cache is None else {"cache": str(self.cache)}
        return same | {"sigmas": self.sigmas.tolist()} | self.guidance_rule.changed() | cache


class _Guidance(NamedTuple):
    """Fields of Plan. notice: a line for the user; "": none"""

    cfg_scale: float
    image_cfg_scale: float | None
    guided: bool
    notice: str


def resolve(
    pipe: Pipeline,
    settings: Settings,
    images: ConditioningImages = NO_IMAGES,
    second_pass: Truncation | None = None,
) -> Plan:
    """Build the Plan. Raises BadInput, in one line, for a setting out of range or without effect on this model.

    second_pass: which sigmas --strength leaves where sampling starts from a finished latent; None: it does not
    """
    check_ranges(settings)
    convention, own, flow = CONVENTIONS[settings.like], pipe.variant, pipe.variant.flow
    check_known(own, convention, settings, images)
    _check_use(pipe, settings)
    images = images if pipe.autoencoder.alpha else images.without_alpha()
    width, height, notices = drawn_size(pipe, convention, settings, images)
    may_be_2511 = pipe.denoiser.name == "qwen-image" and not pipe.denoiser.params.get("zero_cond_t")
    if may_be_2511 and images.references:
        notices += ("no file says that these are the weights of Edit 2511; if they are: --qwen-image-zero-cond-t",)
    images = as_tokens(pipe, convention, images, (height, width))
    check_images(pipe, convention, images, width, height)
    P = pipe.autoencoder.pixels
    layers = (settings.qwen_image_layers or own.layers) if own.layers else None
    # The first of the frames is the whole picture.
    frames = () if layers is None else (layers + 1,)
    latent_shape = 1, *frames, pipe.denoiser.latent_channels, height // P, width // P
    rule = _sampling_rule(pipe, convention, settings)
    noise = noise_levels(pipe, convention, settings, images, rule, latent_shape, second_pass)
    guidance = _guidance(pipe, convention, settings, noise.method)
    scales, guidance_rule = convention.row(own.guidance_schedule)(noise.sigmas[:-1]), settings.guidance_rule
    if settings.cfg_scale is None and not guidance_rule.guidance_schedule:
        guidance_rule = guidance_rule._replace(guidance_schedule=scales)
    if settings.cache is not None:
        check_cache(pipe.denoiser, settings, images, noise, pipe.variant.title)
    return Plan(
        convention=convention,
        prompt=settings.prompt,
        negative_prompt=settings.negative_prompt,
        guided=guidance.guided,
        clip_skip=settings.clip_skip,
        width=width,
        height=height,
        latent_shape=latent_shape,
        images=images,
        rng=settings.rng or convention.rng,
        seeds=tuple(settings.seed + b for b in range(settings.batch_count)),
        sampler=rule.sampler,
        eta=settings.eta,
        sampler_rng=settings.sampler_rng or convention.step_rng,
        steps=rule.steps,
        strength=settings.strength,
        flow_shift=settings.flow_shift,
        custom_sigmas=settings.sigmas is not None,
        prediction=rule.prediction,
        output=flow.prediction if flow else PREDICTIONS[rule.prediction or "eps"][0],
        cfg_scale=guidance.cfg_scale,
        image_cfg_scale=guidance.image_cfg_scale,
        qwen_image_layers=layers,
        guidance=(settings.guidance or own.guidance) if _embeds_guidance(pipe) else None,
        guidance_rule=guidance_rule,
        control_strength=settings.control_strength,
        control_start=settings.control_start,
        control_end=settings.control_end,
        control_type=settings.control_type,
        ip_scale=settings.ip_scale,
        cache=settings.cache,
        tiling=settings.tiling,
        circular=settings.circular,
        notices=notices + ((guidance.notice,) if guidance.notice else ()),
        **noise._asdict(),
    )


def _sampling_rule(pipe: Pipeline, convention: Convention, settings: Settings) -> SamplingRule:
    """Settle sampler, schedule, steps and prediction type."""
    own, flow = pipe.variant, pipe.variant.flow
    scheduler = scheduler_config(pipe.checkpoint)
    configured = scheduler if convention.reads_scheduler else None
    sampler = settings.sampler or (configured.sampler() if configured and flow is None else None)
    sampler = sampler or convention.sampler or own.sampler
    method = sampling.method(sampler, settings.eta, flow is not None, convention)
    schedule = settings.schedule or convention.default_schedule(sampler, own.schedule)
    steps, preset = settings.steps or own.steps, ()
    if flow is not None and configured is not None and settings.schedule is None and settings.sigmas is None:
        preset = sample_sigmas(pipe.checkpoint)
    if preset:
        if settings.steps not in (None, len(preset)):
            raise BadInput(
                f"--steps {settings.steps}: {pipe.checkpoint.path} names the noise levels of {len(preset)} steps, "
                "its sample_sigmas: leave --steps out, or name a --scheduler"
            )
        schedule, steps = "sample_sigmas", len(preset)
    prediction = None if flow else prediction_of(pipe.checkpoint, scheduler, pipe.denoiser, settings.prediction)
    return SamplingRule(scheduler, configured, sampler, method, schedule, steps, prediction, preset)


def _guidance(pipe: Pipeline, convention: Convention, settings: Settings, method: sampling.Method) -> _Guidance:
    """Settle the scales of guidance. Raises BadInput for a rule of guidance without effect."""
    own, notice = pipe.variant, ""
    usual = convention.cfg_scale if own.flow is None else None
    cfg_scale = next(s for s in (settings.cfg_scale, usual, own.cfg_scale) if s is not None)
    image_cfg_scale = None
    if own.extra_channels == "edit":
        scales = settings.image_cfg_scale, convention.image_cfg_scale, cfg_scale
        image_cfg_scale = next(scale for scale in scales if scale is not None)
    if settings.negative_prompt and cfg_scale == 1:
        why = f"{own.title}'s guidance is distilled into its weights; " if own.cfg_scale == 1 else ""
        notice = f"--negative-prompt is not read: {why}it needs a --cfg-scale other than 1"
    guided = cfg_scale != 1 or image_cfg_scale not in (None, 1) or method.cfg_pp
    skippable = pipe.denoiser.fits.get("skip_layers")
    layers = None if skippable is None else skippable.n
    settings.guidance_rule.check_use(own.title, layers, guided, own.extra_channels == "edit")
    return _Guidance(cfg_scale, image_cfg_scale, guided, notice)


def check_ranges(settings: Settings) -> None:
    """Raise BadInput for a setting that is out of range for every model."""
    if settings.like not in CONVENTIONS:
        raise BadInput(f"--like {settings.like}: expected one of {', '.join(CONVENTIONS)}")
    convention = CONVENTIONS[settings.like]
    sampling.method(settings.sampler or "euler", settings.eta, None, convention)
    schedules = [*{**SCHEDULES, **FLOW_SCHEDULES, **convention.schedules}]
    if settings.schedule is not None and settings.schedule not in schedules:
        raise BadInput(f"--scheduler {settings.schedule}: expected one of {', '.join(schedules)}")
    for flag, name in (("rng", settings.rng), ("sampler-rng", settings.sampler_rng)):
        if name is not None:
            sampling.check_rng(flag, name)
    if settings.sigmas is not None:
        levels = [*settings.sigmas]
        falling = len(levels) > 1 and all(a > b for a, b in itertools.pairwise(levels))
        if not (falling and levels[-1] >= 0 and math.isfinite(levels[0])):
            raise BadInput("--sigmas: expected two numbers or more, falling, the last not below 0: 14.61,7.8,3.5,0")
    check_between(settings)
    if settings.control_start >= settings.control_end:
        given = f"--control-start {settings.control_start:g}, --control-end {settings.control_end:g}"
        raise BadInput(f"{given}: expected the start below the end")
    settings.guidance_rule.check()
    for flag, text in (("prompt", settings.prompt), ("negative-prompt", settings.negative_prompt)):
        if any("\ud800" <= c <= "\udfff" for c in text):
            raise BadInput(f"--{flag}: expected text, found bytes that are not UTF-8")


def _check_use(pipe: Pipeline, settings: Settings) -> None:
    """Raise BadInput for a setting that has no effect on this model."""
    own, flow = pipe.variant, pipe.variant.flow
    check_control_type(pipe, settings.control_type)
    if own.layers and settings.prompt in ("", " "):
        raise BadInput(
            "--prompt: without one diffusers has the text encoder describe the picture, which refsd does not: "
            "say what the picture shows"
        )
    rows = {
        "guidance": (settings.guidance, _embeds_guidance(pipe), "embeds no guidance; --cfg-scale guides it"),
        "flow-shift": (settings.flow_shift, flow is not None, "is no rectified flow"),
        "prediction": (settings.prediction, flow is None, "is a rectified flow"),
        "img-cfg-scale": (settings.image_cfg_scale, own.extra_channels == "edit", "edits no picture"),
        "qwen-image-layers": (settings.qwen_image_layers, own.layers > 0, "draws one picture"),
        "circular": (
            settings.circular.x or settings.circular.y or None,
            flow is None,
            "has no convolutions to wrap",
        ),
    }
    for flag, (value, used, why) in rows.items():
        if value is not None and not used:
            raise BadInput(f"--{flag}: {own.title} {why}; leave it out")


def _embeds_guidance(pipe: Pipeline) -> bool:
    fits = pipe.denoiser.fits
    return "guidance" in fits and fits["guidance"].holds(1)
