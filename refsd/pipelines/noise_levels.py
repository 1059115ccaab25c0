"""The noise levels of a picture's steps: from the user's sigmas, a folder's schedule or a schedule's name."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.conventions.pictures import Convention
from refsd.conventions.sampling import Truncation, without_penultimate
from refsd.numerics.errors import BadInput
from refsd.pipelines import sampling
from refsd.pipelines.conditioning_images import ConditioningImages
from refsd.pipelines.pipeline import Pipeline
from refsd.pipelines.prediction import PREDICTIONS
from refsd.pipelines.scheduler_config import ConfiguredSchedule, ScheduledLevels, SchedulerConfig
from refsd.pipelines.settings import Settings
from refsd.samplers.levels import SD_LEVELS, DiscreteLevels, FlowLevels, Levels, shift_snr
from refsd.samplers.schedules.flow import FLOW_SCHEDULES


class SamplingRule(NamedTuple):
    """How the model is sampled: each value from the user, the folder, the convention or the family.

    scheduler:  of the diffusers folder; None: there is none
    configured: the same, if the convention reads it
    preset:     noise levels that the folder names for the steps; (): none, or the user chose otherwise
    """

    scheduler: SchedulerConfig | None
    configured: SchedulerConfig | None
    sampler: str
    method: sampling.Method
    schedule: str
    steps: int
    prediction: str | None
    preset: tuple[float, ...] = ()


class NoiseLevels(NamedTuple):
    """The noise levels of the steps, and the scales of the first and last latents: fields of Plan."""

    from_image: bool
    method: sampling.Method
    schedule: str
    levels: Levels
    sigmas: np.ndarray
    first_noise: float
    last_scale: float


def noise_levels(
    pipe: Pipeline,
    convention: Convention,
    settings: Settings,
    images: ConditioningImages,
    rule: SamplingRule,
    latent_shape: tuple[int, ...],
    second_pass: Truncation | None,
) -> NoiseLevels:
    """Settle the sigmas of the steps, the levels that they lie on, and the scales of the first and last latents."""
    own, flow, method, schedule, steps = pipe.variant, pipe.variant.flow, rule.method, rule.schedule, rule.steps

    def levels_of(steps: int) -> Levels:
        if flow is not None:
            of = flow.levels_of(convention.name, settings.flow_shift is not None)
            return of(_shift(pipe, convention, settings, rule.scheduler, latent_shape, steps))
        return unet_levels(convention, rule.scheduler, rule.prediction or "eps")

    ignored = convention.full_strength_ignores_init and own.extra_channels == "inpaint" and settings.strength == 1
    from_image = second_pass is not None or (images.init is not None and not ignored)
    levels, folder = levels_of(steps), None
    unchosen = settings.schedule is None and settings.sigmas is None and schedule == convention.row(own.schedule)
    if rule.configured is not None and rule.preset:
        rule.configured.check_flow("flow_uniform")
    if rule.configured is not None and unchosen:
        folder = _folder_schedule(pipe, rule.configured, settings, images, rule.sampler, steps, levels, from_image)
    truncation = second_pass or (convention.truncation if flow is None else convention.flow_truncation)
    truncation = truncation if from_image else None
    sigmas = _sigmas(pipe, convention, settings, rule, levels_of, truncation, folder)

    unit_noise, last_scale = schedule not in convention.sigma_schedules, 1.0
    if isinstance(levels, DiscreteLevels):
        method = method.with_options(levels=levels, steps=None if folder is None else steps)
    elif isinstance(levels, FlowLevels):
        method = method.with_options(**convention.flow_options(levels.shift))
        last_scale = convention.flow_ending(rule.sampler, float(sigmas[-1]))
    if folder is not None:
        schedule, unit_noise = folder.name, folder.unit_noise
        last_scale = 1 / math.sqrt(1 + float(sigmas[-1]) ** 2)
        levels = ScheduledLevels(levels.sigmas, folder)
    whole = flow is not None and convention.family_rows in flow.of_pipeline and not from_image
    first_noise = 1.0 if whole else float(sigmas[0])
    if flow is None and unit_noise and (not from_image or convention.first_noise_on_image):
        first_noise = convention.first_noise(first_noise, float(levels.sigmas[-1]))
    return NoiseLevels(from_image, method, schedule, levels, sigmas, first_noise, last_scale)


def unet_levels(convention: Convention, scheduler: SchedulerConfig | None, prediction: str) -> Levels:
    levels = PREDICTIONS[prediction][1]
    if levels is not SD_LEVELS:
        return levels
    trained = SD_LEVELS if scheduler is None else scheduler.levels()
    if scheduler is not None and trained is not SD_LEVELS and not convention.reads_scheduler:
        low, high = trained.sigmas[[0, -1]]
        raise BadInput(
            f"{scheduler.path}: sigmas of {low:.6g} to {high:.6g} in {len(trained.sigmas)} steps; "
            f"{convention.name} knows {SD_LEVELS.sigmas[0]:.6g} to {SD_LEVELS.sigmas[-1]:.6g} in 1000 only: "
            "say --like diffusers"
        )
    return trained if type(trained) is convention.levels else convention.levels(trained.sigmas)


def _shift(pipe, convention, settings, scheduler, latent_shape, steps: int) -> float:
    """Return a flow's shift: from the flag, the folder, or the family's rule for this size and number of steps."""
    if settings.flow_shift is not None:
        return pipe.variant.flow.from_flag(settings.flow_shift)
    read = convention.reads_scheduler and not pipe.variant.flow.of_pipeline
    shift = scheduler.shift() if scheduler is not None and read else None
    if shift is not None:
        return shift
    side = pipe.variant.flow.side or pipe.denoiser.patch
    *_, h, w = latent_shape
    return convention.row(pipe.variant.flow.shift)(-(-h // side) * -(-w // side), steps)


def _folder_schedule(
    pipe, configured: SchedulerConfig, settings, images, sampler: str, steps: int, levels: Levels, from_image: bool
) -> ConfiguredSchedule | None:
    """Return the diffusers folder's schedule; None for a flow or an EDM model, which use the family's."""
    if pipe.variant.flow is not None:
        configured.check_flow(pipe.variant.schedule["diffusers"])
    if not isinstance(levels, DiscreteLevels):
        return None
    if sampler in ("pndm", "pndm_v") and from_image and settings.strength < 1:
        raise BadInput(f"{configured.path}: {sampler} does not start from --init-img: say --sampling-method euler")
    corrected = pipe.variant.corrects_scheduler and images.control is None
    return configured.schedule(sampler, steps, levels, corrected)


def _sigmas(
    pipe,
    convention: Convention,
    settings,
    rule: SamplingRule,
    levels_of: Callable[[int], Levels],
    truncation: Truncation | None,
    folder: ConfiguredSchedule | None,
) -> np.ndarray:
    """Return the sigmas, [n + 1], float64, falling. Raises BadInput if steps and strength leave none.

    truncation: None if sampling starts from noise alone
    """
    if settings.sigmas is not None:
        return np.array(settings.sigmas, np.float64)

    def schedule(steps: int) -> np.ndarray:
        if folder is not None:
            return folder.sigmas
        levels = levels_of(steps)
        if rule.preset and isinstance(levels, FlowLevels):
            return np.append(shift_snr(np.array(rule.preset), levels.shift), 0.0)
        rule_of = convention.known_schedules(pipe.variant.latent_format == "sdxl", isinstance(levels, FlowLevels))
        found = lambda n, levels: scheduled(rule.schedule, n, levels, pipe.variant.title, rule_of)
        return (without_penultimate(found) if rule.sampler in convention.discarding else found)(steps, levels)

    return truncated(rule.schedule, rule.steps, settings.strength, truncation, schedule)


def scheduled(
    name: str, steps: int, levels: Levels, title: str, schedules: Mapping[str, Callable[[int, Any], np.ndarray]]
) -> np.ndarray:
    """Return a schedule's sigmas, [n + 1]. Raises BadInput for a flow's schedule of a model that is none."""
    if name in FLOW_SCHEDULES and not isinstance(levels, FlowLevels):
        raise BadInput(f"--scheduler {name}: {title} is no rectified flow")
    return schedules[name](steps, levels)


def truncated(
    name: str,
    steps: int,
    strength: float,
    truncation: Truncation | None,
    schedule: Callable[[int], np.ndarray],
) -> np.ndarray:
    """Return the sigmas that a strength leaves of a schedule; all of them if there is no truncation.

    Raises BadInput if steps and strength leave none, and for steps that the schedule does not have.
    """
    try:
        if truncation is None or strength == 1:
            return schedule(steps)
        sigmas = truncation(steps, strength, schedule)
    except ValueError as error:
        raise BadInput(f"--scheduler {name}, --steps {steps}: {error}") from None
    if len(sigmas) < 2:
        raise BadInput(f"--strength {strength:g} of --steps {steps} leaves no step: raise one of them")
    return sigmas
