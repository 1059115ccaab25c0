"""The noise levels that a model is run at: the family's shift, the schedule, and a given picture's share of it."""

from functools import partial

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.pipelines.pipeline import Pipeline, filled, latent_shape
from refsd.pipelines.prediction import PREDICTIONS, shift_of
from refsd.pipelines.settings import Settings
from refsd.pipelines.trained_levels import trained_levels
from refsd.samplers.conventions import CARDS, fewer_rounded_up
from refsd.samplers.levels import SD_LEVELS, FlowLevels, Levels
from refsd.samplers.schedules import SCHEDULES
from refsd.samplers.schedules.flow import FLOW_SCHEDULES


def levels_of(pipe: Pipeline, settings: Settings, steps: int) -> Levels:
    """The noise levels of a filled setting; a flow's move with the picture's size, some with the steps."""
    flow = pipe.variant.flow
    if flow is None:
        known = PREDICTIONS[settings.prediction or "eps"][1]
        return trained_levels(pipe.checkpoint, settings.like) if known is SD_LEVELS else known
    shift = shift_of(pipe.checkpoint) if settings.like == "diffusers" else None
    if settings.flow_shift is not None:
        shift = flow.from_flag(settings.flow_shift)
    if shift is None:
        side = pipe.denoiser.patch
        _, _, h, w = latent_shape(pipe, settings)
        shift = flow.shift[settings.like](-(-h // side) * -(-w // side), steps)
    return flow.levels(shift)


def sigmas(pipe: Pipeline, settings: Settings, from_a_picture: bool = False) -> np.ndarray:
    """[n + 1], float64, falling to 0. Raises BadInput for steps that the schedule does not have."""
    settings = filled(pipe, settings)
    if settings.sigmas is not None:
        return np.array(settings.sigmas, np.float64)
    steps = settings.steps or 1
    try:
        if not from_a_picture or settings.strength == 1:
            return _schedule(pipe, settings, steps)
        truncation = CARDS[settings.like].truncation
        if settings.like == "diffusers" and pipe.variant.flow is not None:
            truncation = fewer_rounded_up
        levels = truncation(steps, settings.strength, partial(_schedule, pipe, settings))
    except ValueError as error:
        raise BadInput(f"--scheduler {settings.schedule}, --steps {steps}: {error}") from None
    if len(levels) < 2:
        raise BadInput(f"--strength {settings.strength:g} of --steps {steps} leaves no step: raise one of them")
    return levels


def _schedule(pipe: Pipeline, settings: Settings, steps: int) -> np.ndarray:
    name, levels = settings.schedule or "", levels_of(pipe, settings, steps)
    if name in FLOW_SCHEDULES:
        if not isinstance(levels, FlowLevels):
            raise BadInput(f"--scheduler {name}: {pipe.variant.title} is no rectified flow")
        return FLOW_SCHEDULES[name](steps, levels)
    return SCHEDULES[name](steps, levels)
