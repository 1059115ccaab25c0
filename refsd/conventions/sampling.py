"""Cards of sampling: noise, levels, schedules and truncation by which engines differ. Data and small functions."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.samplers.levels import DiscreteLevels, FlowLevels, Levels
from refsd.samplers.schedules import SCHEDULES, Schedule

# (seed, [N, C, H, W]) -> standard normals, float32
BatchNoise = Callable[[int, tuple[int, ...]], np.ndarray]
# Samplers that take increments of a Brownian motion in k-diffusion; its dpm++2m_sde, which does too, takes fresh
# noise in stable-diffusion.cpp.
BROWNIAN = ("dpm++sde", "dpm++2m_sde_heun", "dpm++3m_sde")
# Default schedules of samplers. Source: stable-diffusion.cpp, sd_get_default_scheduler.
SDCPP_SCHEDULES = {"lcm": "lcm", "tcd": "lcm", "ddim_trailing": "simple"}
# (steps, share of the trajectory to run (0 .. 1), n -> schedule of n steps) -> the sigmas to run
Truncation = Callable[[int, float, Callable[[int], np.ndarray]], np.ndarray]


def stream_for_each(rng: Callable) -> BatchNoise:
    """Give picture b its own generator with seed + b, so that a picture does not depend on its batch."""
    return lambda seed, shape: np.stack([rng(seed + b).randn(shape[1:]) for b in range(shape[0])])


def one_stream(rng: Callable) -> BatchNoise:
    """Draw the whole batch from one generator, so that only the first picture is the same in any batch."""
    return lambda seed, shape: rng(seed).randn(shape)


def from_the_end(steps: int, strength: float, schedule: Callable[[int], np.ndarray]) -> np.ndarray:
    """Truncate as A1111 and Forge do: run the last int(steps * min(strength, 0.999)) + 1 steps of `steps`.

    Source: A1111 modules/sd_samplers_common.py, setup_img2img_steps.
    """
    run = int(min(strength, 0.999) * steps)
    return schedule(steps)[steps - run - 1 :]


def from_the_end_whole(steps: int, strength: float, schedule: Callable[[int], np.ndarray]) -> np.ndarray:
    """Truncate as A1111's img2img_fix_steps and its hires pass do: run the last `steps` of a longer schedule.

    The schedule has int(steps / min(strength, 0.999)) steps. Strength 0 runs none.
    Source: A1111 modules/sd_samplers_common.py, setup_img2img_steps.
    """
    if strength <= 0:
        return np.empty(0)
    return schedule(int(steps / min(strength, 0.999)))[-(steps + 1) :]


def from_the_end_sdcpp(steps: int, strength: float, schedule: Callable[[int], np.ndarray]) -> np.ndarray:
    """Truncate as stable-diffusion.cpp does: run the last int(steps * strength) + 1 steps of `steps`, at most all.

    The product is computed in float32: 100 steps at strength 0.29 give 30; in A1111's float64 they give 29.
    Source: stable-diffusion.cpp src/stable-diffusion.cpp, prepare_image_generation_latents.
    """
    run = min(int(np.float32(steps) * np.float32(strength)), steps - 1)
    return schedule(steps)[steps - run - 1 :]


def hires_sdcpp(steps: int, strength: float, schedule: Callable[[int], np.ndarray]) -> np.ndarray:
    """Truncate as stable-diffusion.cpp's hires pass does: from_the_end_sdcpp with int(steps / strength) steps.

    That runs steps + 1 steps if steps / strength is an integer.
    Source: stable-diffusion.cpp src/stable-diffusion.cpp, generate_image.
    """
    return from_the_end_sdcpp(int(np.float32(steps) / np.float32(max(strength, 1e-4))), strength, schedule)


def stretched(steps: int, strength: float, schedule: Callable[[int], np.ndarray]) -> np.ndarray:
    """Truncate as ComfyUI does: run the last `steps` of int(steps / strength) steps; none if strength is 0.

    Source: ComfyUI comfy/samplers.py, KSampler.set_steps.
    """
    if strength > 0.9999:
        return schedule(steps)
    if strength <= 0:
        return np.empty(0)
    return schedule(int(steps / strength))[-(steps + 1) :]


def fewer(steps: int, strength: float, schedule: Callable[[int], np.ndarray]) -> np.ndarray:
    """Truncate as diffusers does for SD and SDXL: run the last int(steps * strength) steps of `steps`.

    A scheduler of order 2 lists every level twice and begins at twice the index, which gives the same sigmas.
    Source: diffusers StableDiffusionImg2ImgPipeline.get_timesteps.
    """
    return schedule(steps)[steps - min(int(steps * strength), steps) :]


def fewer_rounded_up(steps: int, strength: float, schedule: Callable[[int], np.ndarray]) -> np.ndarray:
    """Truncate as diffusers does for SD3 and Flux: leave out the first int(steps - steps * strength) steps.

    Source: diffusers FluxImg2ImgPipeline.get_timesteps.
    """
    return schedule(steps)[int(max(steps - min(steps * strength, steps), 0)) :]


def times_sigma(sigma: float, sigma_max: float) -> float:
    """Scale the first noise by sigma_0: the latents are noise alone."""
    return sigma


def unit_data_at_the_top(sigma: float, sigma_max: float) -> float:
    """Scale by sqrt(sigma_0^2 + 1) at the highest level, as if the data had unit variance; below it by sigma_0.

    Source: ComfyUI comfy/samplers.py, Sampler.max_denoise.
    """
    return math.sqrt(sigma**2 + 1) if sigma > sigma_max * (1 - 1e-5) else sigma


def unit_data(sigma: float, sigma_max: float) -> float:
    """Scale by sqrt(sigma_0^2 + 1) at every level, as if the data had unit variance.

    Source: diffusers EulerDiscreteScheduler.init_noise_sigma, for its spacing "leading".
    """
    return math.sqrt(sigma**2 + 1)


def without_penultimate(schedule: Schedule) -> Schedule:
    """Return a schedule that takes one step more and leaves out its last sigma above 0."""

    def discarded(n: int, levels: Levels) -> np.ndarray:
        sigmas = schedule(n + 1, levels)
        return np.append(sigmas[:-2], sigmas[-1])

    return discarded


def in_range_of(spacing: Schedule, schedule: Schedule) -> Schedule:
    """Return a schedule whose range is that of another schedule's sigmas instead of the model's."""
    return lambda n, levels: schedule(n, DiscreteLevels(spacing(n, levels)[-2::-1]))


class Card(NamedTuple):
    """An engine's defaults in sampling.

    engine:      name of the engine
    rng:         random number generator of the first noise
    noise:       draws the first noise of a batch
    levels:      sigmas -> Levels: how the network gets a sigma's timestep
    schedules:   the engine's schedule name -> schedule
    schedule:    the default schedule
    first:       (sigma_0, highest level) -> factor of the first noise
    truncation:  selects the sigmas to run in img2img
    discarding:  samplers for which the last sigma above 0 is left out
    eta:         eta of ancestral samplers
    clip_skip:   1 is the last layer
    source:      where the engine's code is
    of_flows:    schedules for rectified flows only, or that differ for them
    flow_schedule: the default schedule for rectified flows, if it differs
    flow_truncation: the truncation for rectified flows, if it differs
    no_signal:   stands for the last level's share of the signal if it is 0
    of_sdxl_tables: schedules that are tables, with SDXL's own table
    """

    engine: str
    rng: str
    noise: BatchNoise
    levels: Callable[[np.ndarray], Levels]
    schedules: Mapping[str, Schedule]
    schedule: str
    first: Callable[[float, float], float]
    truncation: Truncation
    discarding: frozenset[str] = frozenset()
    eta: float = 1.0
    clip_skip: int = 1
    source: str = ""
    of_flows: Mapping[str, Callable[[int, FlowLevels], np.ndarray]] = {}
    flow_schedule: str = ""
    flow_truncation: Truncation | None = None
    no_signal: float = 2.0**-24
    of_sdxl_tables: Mapping[str, Schedule] = {}

    def of_sdxl(self) -> "Card":
        """Return the card with SDXL's schedule tables."""
        return self._replace(schedules={**self.schedules, **self.of_sdxl_tables})

    def rules(self, levels: Levels) -> Mapping[str, Callable[[int, Any], np.ndarray]]:
        """Return the schedules for the given kind of levels, by name."""
        return {**self.schedules, **self.of_flows} if isinstance(levels, FlowLevels) else self.schedules

    def truncation_of(self, levels: Levels) -> Truncation:
        """Return the truncation for the given kind of levels."""
        own = self.flow_truncation if isinstance(levels, FlowLevels) else None
        return own or self.truncation

    def sigmas(self, steps: int, schedule: str, sampler: str, levels: Levels, strength: float = 1.0) -> np.ndarray:
        """Compute the sigmas to run, falling."""
        rule = self.rules(levels)[schedule]
        if sampler in self.discarding:
            rule = without_penultimate(rule)
        if strength == 1.0:
            return rule(steps, levels)
        return self.truncation_of(levels)(steps, strength, lambda n: rule(n, levels))


def named(*names: str, **renamed: Schedule) -> dict[str, Schedule]:
    """Return schedules under refsd's names, and others under the engine's."""
    return {**{name: SCHEDULES[name] for name in names}, **renamed}
