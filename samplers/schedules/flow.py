"""Schedules of rectified flow models: sigma is the share of noise. All return [n + 1] float64, 1 falling to 0.

tokens: number of tokens of the packed latent: (height / 16) (width / 16) for Flux
"""

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np

from refsd.samplers.levels import FlowLevels, shift_exponential, shift_snr

TERMINAL = 0.02  # shift_terminal of Qwen-Image's scheduler_config.json


def _shifted(n: int, shift) -> np.ndarray:
    """Return 1 - i / n for i < n, each transformed by `shift`, and 0."""
    return np.append([shift(1 - i / n) for i in range(n)], 0.0)


def flow_uniform(n: int, shift: float = 1.0) -> np.ndarray:
    """Compute shift_snr(1 - i / n): Z-Image's schedule with shift 3, schnell's with 1.

    Source: Tongyi-MAI/Z-Image src/zimage/scheduler.py; black-forest-labs/flux sampling.py, get_schedule.
    """
    return _shifted(n, lambda t: shift_snr(t, shift))


def flow_linspace(n: int, shift: float = 3.0, steps: int = 1000) -> np.ndarray:
    """Space sigmas evenly from 1 to shift_snr(1 / steps), then shift them: the lowest level is shifted twice.

    steps: number of the model's levels
    Source: diffusers FlowMatchEulerDiscreteScheduler.set_timesteps without sigmas, as for SD3; ComfyUI
    comfy/samplers.py, normal_scheduler.
    """
    return np.append(shift_snr(np.linspace(1.0, shift_snr(1 / steps, shift), n), shift), 0.0)


def flow_sgm_uniform(n: int, shift: float = 3.0, steps: int = 1000) -> np.ndarray:
    """Compute flow_linspace with one level more and leave out the lowest; schedules.sgm_uniform ends at 1 / steps.

    Source: ComfyUI comfy/samplers.py, normal_scheduler with sgm.
    """
    return np.append(shift_snr(np.linspace(1.0, shift_snr(1 / steps, shift), n + 1)[:-1], shift), 0.0)


def flow_below_one(n: int, shift: float = 1.0, steps: int = 1000) -> np.ndarray:
    """Compute shift_snr((1 - 1 / steps) (1 - i / n)): evenly to 0 from below 1, where log SNR is finite.

    Source: diffusers DPMSolverMultistepScheduler, DEISMultistepScheduler, SASolverScheduler with use_flow_sigmas.
    UniPCMultistepScheduler uses schedules.sgm_uniform, and steps from 1 - 1e-6.
    """
    return _shifted(n, lambda t: shift_snr((1 - 1 / steps) * t, shift))


def flow_logit_normal(n: int, shift: float = 1.0, spread: float = 1.5) -> np.ndarray:
    """Take the quantiles 1 - i / n of a logit-normal distribution: Ideogram 4's schedule.

        log(sigma / (1 - sigma)) = log shift + spread Phi^-1(1 - i / n), held within -7.5 .. 9;  then 0

    Source: diffusers Ideogram4Pipeline, _logit_normal_sigmas; its mu is log shift, its std the spread.
    """
    quantiles = [math.inf, *(NormalDist().inv_cdf((n - i) / n) for i in range(1, n))]
    logits = np.clip(math.log(shift) + spread * np.array(quantiles), -7.5, 9.0)
    return np.append(1 / (1 + np.exp(-logits)), 0.0)


def line_through(x: float, first: tuple[float, float], second: tuple[float, float]) -> float:
    """Evaluate the straight line through two points at x."""
    (x0, y0), (x1, y1) = first, second
    return y0 + (y1 - y0) / (x1 - x0) * (x - x0)


def flux_mu(tokens: int, base_shift: float = 0.5, max_shift: float = 1.15) -> float:
    """Compute Flux's mu: a line in the tokens through (256, base_shift) and (4096, max_shift).

    Source: black-forest-labs/flux sampling.py, get_lin_function; diffusers calculate_shift.
    """
    return line_through(tokens, (256, base_shift), (4096, max_shift))


def flux2_mu(tokens: int, n: int) -> float:
    """Compute Flux.2's mu: fitted lines in the tokens for 10 and for 200 steps, linear in the steps between them.

        m10 = 8.73809524e-5 tokens + 1.89833333,  m200 = 1.6927e-4 tokens + 0.45666666;  tokens > 4300: m200

    Source: black-forest-labs/flux2 sampling.py, compute_empirical_mu.
    """
    m10, m200 = 8.73809524e-05 * tokens + 1.89833333, 0.00016927 * tokens + 0.45666666
    return m200 if tokens > 4300 else line_through(n, (10, m10), (200, m200))


def qwen_image_mu(tokens: int) -> float:
    """Compute Qwen-Image's mu: a line in the tokens through (256, 0.5) and (8192, 0.9).

    Source: Qwen/Qwen-Image, scheduler/scheduler_config.json: base_shift, max_shift, base and max_image_seq_len.
    """
    return line_through(tokens, (256, 0.5), (8192, 0.9))


def _stretched(sigmas: np.ndarray, terminal: float) -> np.ndarray:
    """Stretch a schedule linearly so that its last sigma above 0 is `terminal`, and the first stays 1.

    sigma <- 1 - (1 - sigma) (1 - terminal) / (1 - sigma_{n-1});  a single step stays as it is
    """
    above = sigmas[:-1]
    if len(above) > 1:
        above = 1 - (1 - above) * (1 - terminal) / (1 - above[-1])
    return np.append(above, 0.0)


def flow_terminal(n: int, shift: float, terminal: float = TERMINAL) -> np.ndarray:
    """Compute flow_uniform, stretched to end at `terminal` before 0: Qwen-Image's schedule.

    Source: diffusers FlowMatchEulerDiscreteScheduler.stretch_shift_to_terminal.
    """
    return _stretched(flow_uniform(n, shift), terminal)


def ltx2(n: int, tokens: int = 4096, terminal: float | None = 0.1) -> np.ndarray:
    """Compute LTX's schedule: a mu line through (1024, 0.95), (4096, 2.05); stretched to end at `terminal`.

    terminal: last sigma above 0; None: do not stretch
    Source: Lightricks/LTX-Video schedulers; stable-diffusion.cpp LTX2Scheduler; ComfyUI LTXVScheduler.
    """
    mu = line_through(tokens, (1024, 0.95), (4096, 2.05))
    sigmas = _shifted(n, lambda t: shift_exponential(t, mu))
    return sigmas if terminal is None else _stretched(sigmas, terminal)


# Schedules that only need the model's shift; for Flux and Flux.2 it is e^mu.
FLOW_SCHEDULES: dict[str, Callable[[int, FlowLevels], np.ndarray]] = {
    "flow_uniform": lambda n, levels: flow_uniform(n, levels.shift),
    "flow_terminal": lambda n, levels: flow_terminal(n, levels.shift),
    "flow_linspace": lambda n, levels: flow_linspace(n, levels.shift, levels.steps),
    "flow_sgm_uniform": lambda n, levels: flow_sgm_uniform(n, levels.shift, levels.steps),
    "flow_below_one": lambda n, levels: flow_below_one(n, levels.shift, levels.steps),
    "flow_logit_normal": lambda n, levels: flow_logit_normal(n, levels.shift),
}
