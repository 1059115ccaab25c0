"""Schedules that choose timesteps and look up their noise levels.

Each ends with 0. All take the number of steps and the model's levels, and return [n + 1] float64, falling,
unless the docstring says otherwise.
"""

import numpy as np

from refsd.samplers.levels import Levels


def _with_zero(sigmas) -> np.ndarray:
    return np.append(np.asarray(sigmas, np.float64), 0.0)


def discrete(n: int, levels: Levels) -> np.ndarray:
    """Space timesteps evenly from T-1 to 0, including both ends.

    ComfyUI and A1111 call it normal, A1111 also uniform.
    Source: k-diffusion external.py, DiscreteSchedule.get_sigmas.
    """
    return _with_zero(levels.to_sigma(np.linspace(len(levels.sigmas) - 1, 0, n)))


def sgm_uniform(n: int, levels: Levels) -> np.ndarray:
    """Space timesteps evenly from T-1 to 0, leaving out the lowest, as Stability's generative-models do.

    For a rectified flow, ComfyUI's schedule of this name is flow.flow_sgm_uniform.
    Source: A1111 modules/sd_schedulers.py, sgm_uniform; stable-diffusion.cpp SGMUniformScheduler.
    """
    return _with_zero(levels.to_sigma(np.linspace(len(levels.sigmas) - 1, 0, n + 1)[:-1]))


def simple(n: int, levels: Levels) -> np.ndarray:
    """Take every (T/n)-th level from the top: index T - 1 - floor(i T / n).

    Source: ComfyUI comfy/samplers.py, simple_scheduler.
    """
    T = len(levels.sigmas)
    return _with_zero(levels.sigmas[[T - 1 - int(i * (T / n)) for i in range(n)]])


def ddim_uniform(n: int, levels: Levels) -> np.ndarray:
    """Take levels 1, 1 + k, 1 + 2k, ..., k = max(T // n, 1), from the top; the number of steps may differ from n.

    -> [m + 1], m = ceil((T - 1) / k)
    Source: ComfyUI comfy/samplers.py, ddim_scheduler; Forge modules/sd_schedulers.py.
    """
    T = len(levels.sigmas)
    return _with_zero(levels.sigmas[1 :: max(T // n, 1)][::-1])


def lcm(n: int, levels: Levels) -> np.ndarray:
    """Choose n of the 50 timesteps that LCM was distilled on: t = (50 - floor(50 i / n)) T / 50 - 1.

    Source: Luo et al. 2023 (LCM); stable-diffusion.cpp LCMScheduler.
    """
    T = len(levels.sigmas)
    return _with_zero(levels.to_sigma(np.array([(50 - i * 50 // n) * (T // 50) - 1 for i in range(n)])))


def turbo(n: int, levels: Levels) -> np.ndarray:
    """Take timesteps round(k 1000 / n) - 1, k = n .. 1: for one to four steps of a distilled model.

    Source: Forge modules/sd_schedulers.py, turbo_scheduler.
    """
    T = len(levels.sigmas)
    t = np.clip(np.rint(np.arange(1, n + 1)[::-1] * (T / n) - 1), 0, T - 1)
    return _with_zero(levels.sigmas[t.astype(int)])


def smoothstep(n: int, levels: Levels) -> np.ndarray:
    """Take timesteps (T - 1) u^2 (3 - 2 u), rounded to the nearest integer, u = 1 - i / n.

    Source: stable-diffusion.cpp SmoothStepScheduler.
    """
    T = len(levels.sigmas)
    u = 1 - np.arange(n) / n
    t = u * u * (3 - 2 * u) * (T - 1)
    return _with_zero(levels.to_sigma(np.floor(t + 0.5)))


def beta(n: int, levels: Levels, alpha: float = 0.6, b: float = 0.6) -> np.ndarray:
    """Take timesteps at the quantiles of a beta distribution: (T - 1) F^-1(1 - i / n), rounded to integers.

    Repeated timesteps are dropped, so there may be fewer than n steps.
    Source: Lee et al. 2024 (Beta sampling is all you need); ComfyUI comfy/samplers.py, beta_scheduler.
    """
    from scipy import special  # half a second, which only these schedules need

    T = len(levels.sigmas)
    u = 1 - np.linspace(0, 1, n, endpoint=False)
    t = np.rint(special.betaincinv(alpha, b, u) * (T - 1)).astype(int)
    return _with_zero(levels.sigmas[t[np.append(True, t[1:] != t[:-1])]])


def beta_of_sigma(n: int, levels: Levels, alpha: float = 0.6, b: float = 0.6) -> np.ndarray:
    """Take sigmas at the quantiles of a beta distribution: smin + (smax - smin) F^-1(1 - i / (n - 1)).

    Source: A1111 and Forge modules/sd_schedulers.py, beta_scheduler; diffusers use_beta_sigmas.
    """
    from scipy import special  # half a second, which only these schedules need

    smin, smax = levels.sigmas[0], levels.sigmas[-1]
    return _with_zero(smin + special.betaincinv(alpha, b, 1 - np.linspace(0, 1, n)) * (smax - smin))


def leading(n: int, levels: Levels, offset: int = 1) -> np.ndarray:
    """Use diffusers' spacing "leading": t = floor(T / n) i + offset, from the top; it misses the highest levels.

    Source: diffusers EulerDiscreteScheduler.set_timesteps; Lin et al. 2023, table 2.
    """
    T = len(levels.sigmas)
    return _with_zero(levels.to_sigma((np.arange(n) * (T // n))[::-1] + offset))


def linspace(n: int, levels: Levels) -> np.ndarray:
    """Use diffusers' spacing "linspace": the timesteps of `discrete`, but interpolate sigma instead of ln sigma.

    For n = 1 the schedule begins at timestep 0, the lowest level.
    Source: diffusers EulerDiscreteScheduler.set_timesteps with interpolation_type "linear".
    """
    T = len(levels.sigmas)
    return _with_zero(np.interp(np.linspace(0, T - 1, n)[::-1], np.arange(T), levels.sigmas))


def linspace_multistep(n: int, levels: Levels) -> np.ndarray:
    """Use "linspace" of diffusers' multistep schedulers: the timesteps of sgm_uniform, rounded to integers.

    Ties are rounded to even.
    Source: diffusers DPMSolverMultistepScheduler, UniPC-, DEIS- and SASolver's, set_timesteps.
    """
    T = len(levels.sigmas)
    return _with_zero(levels.sigmas[np.rint(np.linspace(0, T - 1, n + 1)[:0:-1]).astype(int)])


def leading_multistep(n: int, levels: Levels, offset: int = 1) -> np.ndarray:
    """Use "leading" of diffusers' multistep schedulers: t = floor(T / (n + 1)) i + offset, i = n .. 1.

    Source: as in linspace_multistep.
    """
    T = len(levels.sigmas)
    return _with_zero(levels.sigmas[np.minimum(np.arange(n, 0, -1) * (T // (n + 1)) + offset, T - 1)])


def trailing(n: int, levels: Levels) -> np.ndarray:
    """Use diffusers' spacing "trailing": t = round(T - i T / n) - 1; it reaches the highest level, not the lowest.

    Source: diffusers EulerDiscreteScheduler.set_timesteps; Lin et al. 2023, table 2.
    """
    T = len(levels.sigmas)
    t = np.rint(np.arange(T, 0, -T / n)) - 1
    return _with_zero(np.interp(t, np.arange(T), levels.sigmas))
