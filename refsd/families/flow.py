"""The noise levels of a family whose network is a rectified flow."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from refsd.samplers.levels import FlowLevels
from refsd.samplers.parameterization import FLOW, Prediction

# Values of Convention.family_rows: tables that differ between engines have a row for each of these; "comfyui" where
# it differs from stable-diffusion.cpp.
ENGINES: tuple[str, ...] = "sdcpp", "diffusers"

# (image tokens, steps) -> shift of the flow's times towards noise
Shift = Callable[[int, int], float]


class Flow(NamedTuple):
    """Noise levels of a rectified flow.

    shift:      engine -> Shift
    from_flag:  value of --flow-shift -> shift; FLUX.1's flag is mu, with shift e^mu, the others' the shift itself
    levels:     shift -> noise levels, and the network's timestep at each
    prediction: what the network predicts
    side:       latent positions along a token's side, for the shift; None: as the sides of latents are multiples of
    of_engine:  engine -> its `levels`, where they differ
    of_flag:    the same where --flow-shift gives the shift
    of_pipeline: engines whose pipeline computes the levels: a folder's scheduler does not shift them, and the first
                noise is whole, although the first level is below 1
    """

    shift: Mapping[str, Shift]
    from_flag: Callable[[float], float] = float
    levels: Callable[[float], FlowLevels] = FlowLevels
    prediction: Prediction = FLOW
    side: int | None = None
    of_pipeline: tuple[str, ...] = ()
    of_engine: Mapping[str, Callable[[float], FlowLevels]] = {}
    of_flag: Mapping[str, Callable[[float], FlowLevels]] = {}

    def levels_of(self, engine: str, flagged: bool) -> Callable[[float], FlowLevels]:
        """Return an engine's `levels`. flagged: True if --flow-shift is given"""
        of = self.of_engine.get(engine, self.levels)
        return self.of_flag.get(engine, of) if flagged else of


def constant_shift(shift: float) -> dict[str, Shift]:
    """Return a shift that is the same for every engine and size."""
    return dict.fromkeys(ENGINES, lambda tokens, steps: shift)


def shift_of_comfyui(tokens: int, steps: int) -> float:
    """Return what ComfyUI shifts FLUX.1, Qwen-Image and others by where no node sets it, at any size: mu is 1.15.

    Source: ComfyUI comfy/model_sampling.py, ModelSamplingFlux.
    """
    return math.exp(1.15)


def ten_thousand_levels(shift: float) -> FlowLevels:
    """Return the noise levels of its flows whose shift is a mu, where schedules choose among ten times as many."""
    return FlowLevels(shift, multiplier=1.0, steps=10000)


def unit_time(shift: float) -> FlowLevels:
    """Return noise levels for a network whose timestep is sigma, not 1000 sigma."""
    return FlowLevels(shift, multiplier=1.0)
