"""Convention cards: each engine's defaults in sampling, so that engines can be compared.

A card consists of data and small functions. tests/samplers/test_conventions.py tests every line of it.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.samplers.levels import DiscreteLevels, FlowLevels, Levels, NearestLevels
from refsd.samplers.noise import Philox, TorchAvx2
from refsd.samplers.schedules import SCHEDULES, Schedule, tables, timesteps
from refsd.samplers.schedules.flow import FLOW_SCHEDULES

# (seed, [N, C, H, W]) -> standard normals, float32
BatchNoise = Callable[[int, tuple[int, ...]], np.ndarray]
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

    def of_sdxl(self) -> "Card":
        """Return the card with SDXL's schedule tables."""
        return self._replace(schedules={**self.schedules, **SDXL_SCHEDULES.get(self.engine, {})})

    def rules(self, levels: Levels) -> Mapping[str, Callable[[int, Any], np.ndarray]]:
        """Return the schedules for the given kind of levels, by name."""
        return {**self.schedules, **self.of_flows} if isinstance(levels, FlowLevels) else self.schedules

    def sigmas(self, steps: int, schedule: str, sampler: str, levels: Levels, strength: float = 1.0) -> np.ndarray:
        """Compute the sigmas to run, falling."""
        rule = self.rules(levels)[schedule]
        if sampler in self.discarding:
            rule = without_penultimate(rule)
        if strength == 1.0:
            return rule(steps, levels)
        return self.truncation(steps, strength, lambda n: rule(n, levels))


def _named(*names: str, **renamed: Schedule) -> dict[str, Schedule]:
    return {**{name: SCHEDULES[name] for name in names}, **renamed}


_WEBUI = _named(
    *("karras", "exponential", "polyexponential", "sgm_uniform", "simple"),
    uniform=timesteps.discrete,
    normal=timesteps.discrete,
    kl_optimal=SCHEDULES["kl_optimal_to_smin"],
    align_your_steps=lambda n, levels: tables.align_your_steps_appended(n, tables.AYS_SD1),
    ddim=timesteps.ddim_uniform,
    beta=timesteps.beta_of_sigma,
)
_FORGE = {
    "turbo": timesteps.turbo,
    "align_your_steps_11": SCHEDULES["ays_11"],
    "align_your_steps_32": SCHEDULES["ays_32"],
    "align_your_steps_GITS": SCHEDULES["ays_gits"],
}
# Schedules that are tables, with SDXL's own table.
SDXL_SCHEDULES: dict[str, dict[str, Schedule]] = {
    "sdcpp": {"ays": lambda n, levels: tables.align_your_steps(n, tables.AYS_SDXL_LEVELS)},
    "a1111": {"align_your_steps": lambda n, levels: tables.align_your_steps_appended(n, tables.AYS_SDXL)},
    "forge": {
        name: lambda n, levels, table=table: tables.align_your_steps_appended(n, table)
        for name, table in {
            "align_your_steps": tables.AYS_SDXL,
            "align_your_steps_11": tables.AYS_SDXL,
            "align_your_steps_32": tables.AYS_SDXL_32,
            "align_your_steps_GITS": tables.AYS_GITS_SDXL,
        }.items()
    },
}
_COMFYUI = _named(
    *("karras", "exponential", "sgm_uniform", "simple", "ddim_uniform", "beta", "linear_quadratic", "kl_optimal"),
    normal=timesteps.discrete,
)
_COMFYUI_FLOWS = {
    "normal": FLOW_SCHEDULES["flow_linspace"],
    "sgm_uniform": FLOW_SCHEDULES["flow_sgm_uniform"],
}


def _forge_of_flows(name: str) -> Callable[[int, FlowLevels], np.ndarray]:
    """Return ComfyUI's schedule; for Flux, whose network reads sigma itself, space sigmas evenly down from 1.

    Source: Forge modules/sd_schedulers.py; backend/modules/k_prediction.py, PredictionFlux.sigma.
    """

    def rule(n: int, levels: FlowLevels) -> np.ndarray:
        if levels.multiplier != 1:
            return _COMFYUI_FLOWS[name](n, levels)
        spared = int(name == "sgm_uniform")
        return np.append(np.linspace(1.0, levels.sigmas[0], n + spared)[:n], 0.0)

    return rule


_FORGE_FLOWS = {name: _forge_of_flows(name) for name in _COMFYUI_FLOWS}
# diffusers' use_karras_sigmas and similar options. Of EulerDiscreteScheduler the range is that of its spacing, by
# default linspace, whose one step is the lowest level; of the multistep schedulers it is the model's.
_OPTIONS = {"karras": "karras", "exponential": "exponential", "beta": "beta_of_sigma"}
_SPACED = {
    f"{prefix}{name}": in_range_of(SCHEDULES[spacing], SCHEDULES[rule])
    for spacing, prefix in (("linspace", ""), ("leading", "leading_"), ("trailing", "trailing_"))
    for name, rule in _OPTIONS.items()
} | {f"{name}_multistep": SCHEDULES[rule] for name, rule in _OPTIONS.items()}
_SDCPP = _named(
    *("discrete", "karras", "exponential", "ays", "gits", "sgm_uniform", "simple", "smoothstep", "kl_optimal"),
    *("lcm", "bong_tangent", "beta"),
)

CARDS: dict[str, Card] = {
    card.engine: card
    for card in (
        Card(
            "sdcpp",
            "cuda (Philox)",
            stream_for_each(Philox),
            DiscreteLevels,
            _SDCPP,
            "discrete",
            times_sigma,
            from_the_end_sdcpp,
            source="stable-diffusion.cpp src/runtime/denoiser.hpp, src/stable-diffusion.cpp",
        ),
        Card(
            "comfyui",
            "torch's CPU generator",
            one_stream(TorchAvx2),
            NearestLevels,
            _COMFYUI,
            "normal",
            unit_data_at_the_top,
            stretched,
            frozenset({"dpm2", "dpm2_a", "uni_pc", "uni_pc_bh2"}),
            source="ComfyUI comfy/samplers.py, comfy/sample.py, comfy/model_sampling.py",
            of_flows=_COMFYUI_FLOWS,
        ),
        Card(
            "a1111",
            "torch on the GPU (Philox)",
            stream_for_each(Philox),
            DiscreteLevels,
            _WEBUI,
            "uniform",
            times_sigma,
            from_the_end,
            frozenset({"dpm2", "dpm2_a", "dpm++3m_sde"}),
            source="A1111 modules/sd_samplers_kdiffusion.py, modules/rng.py",
        ),
        Card(
            "forge",
            "torch on the GPU (Philox)",
            stream_for_each(Philox),
            NearestLevels,
            {**_WEBUI, **_FORGE},
            "uniform",
            times_sigma,
            from_the_end,
            frozenset({"dpm2", "dpm2_a", "dpm++3m_sde"}),
            source="Forge modules/sd_samplers_kdiffusion.py, modules/rng.py, backend/modules/k_prediction.py",
            of_flows=_FORGE_FLOWS,
        ),
        Card(
            "diffusers",
            "torch's CPU generator",
            one_stream(TorchAvx2),
            DiscreteLevels,
            _named(
                *("leading", "linspace", "trailing", "leading_multistep", "linspace_multistep"),
                **_SPACED,
            ),
            "leading",
            unit_data,
            fewer,
            source="diffusers schedulers/scheduling_euler_discrete.py; SD 1.5's and SDXL's scheduler configs",
            of_flows={name: FLOW_SCHEDULES[name] for name in ("flow_linspace", "flow_below_one")},
            flow_schedule="flow_linspace",
        ),
        Card(
            "k-diffusion",
            "torch's CPU generator",
            one_stream(TorchAvx2),
            DiscreteLevels,
            _named("karras", "exponential", "polyexponential", "vp", discrete=timesteps.discrete),
            "discrete",
            times_sigma,
            from_the_end,
            source="k-diffusion external.py, sampling.py",
        ),
    )
}
