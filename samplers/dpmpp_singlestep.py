import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals, no_noise


def dpmpp_2s_singlestep(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
) -> np.ndarray:
    """DPM-Solver++(2S) whose middle is a sigma of the schedule: two steps, one call each, are one of second order.

        from sigma_a by way of sigma to sigma_next:  h = ln(sigma_a / sigma_next),  r = ln(sigma_a / sigma) / h
        x <- e^-h x_a + (1 - e^-h) (denoised_a + (denoised - denoised_a) / 2r)

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 takes denoised
    noise:  never drawn from
    -> latents at sigmas[-1], dtype of x
    Source: Lu et al. 2022 (DPM-Solver++), algorithm 1; diffusers DPMSolverSinglestepScheduler.
    """
    return _singlestep(model, x, sigmas, callback, 2)


def dpmpp_3s_singlestep(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
) -> np.ndarray:
    """The same with three steps for one of third order, whose last takes denoised_a and denoised only.

        x <- e^-h x_a + (1 - e^-h) denoised_a + (1 - (1 - e^-h) / h) (denoised - denoised_a) / r

    Arguments: dpmpp_2s_singlestep's. Source: diffusers DPMSolverSinglestepScheduler, solver_type "midpoint".
    """
    return _singlestep(model, x, sigmas, callback, 3)


def orders(steps: int, highest: int, to_zero: bool) -> list[int]:
    """The order of each step: 1, 2, .. highest over and over, and lower ones where steps are left, or lead to 0.

    Source: diffusers DPMSolverSinglestepScheduler.get_order_list.
    """
    whole, left = divmod(steps, highest)
    if to_zero and left == 0:
        whole, left = whole - 1, highest
    tail = [highest - 1, 1] if left == highest else [left]
    plan = [k + 1 for length in [highest] * whole + tail for k in range(length)]
    return [*plan[:-1], 1] if to_zero else plan


def _singlestep(model, x, sigmas, callback, highest):
    start, first, told = x, 0.0, x
    plan = orders(len(sigmas) - 1, highest, sigmas[-1] == 0)
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if plan[i] == 1:
            start, first, told = x, sigma, denoised
        if sigma_next == 0:
            return denoised
        h, ratio = math.log(first / sigma_next), sigma_next / first
        if plan[i] == 1:
            x = combine(ratio, start, 1 - ratio, denoised)
        else:
            more = 0.5 * (1 - ratio) if plan[i] == 2 else 1 - (1 - ratio) / h
            c = more * h / math.log(first / sigma)
            x = combine(ratio, start, 1 - ratio - c, told, c, denoised)
    return x
