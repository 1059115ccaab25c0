import math

import numpy as np

from refsd.samplers.ancestral import ancestral_step
from refsd.samplers.latents import sampler
from refsd.samplers.levels import SD_LEVELS, Levels, nearest_t
from refsd.samplers.step import intervals, no_callback, no_noise


def a_stride_from(
    at: np.ndarray, sigmas: np.ndarray, levels: Levels, steps: int | None = None, strides: int = 1
) -> list[float]:
    """Look up the noise levels of t - strides (T // n), where t are the timesteps nearest to the sigmas `at`.

    sigmas:  [n + 1]; the last one stands for all timesteps below 0
    levels:  the model's T levels
    steps:   n, if the sigmas are only the end of a schedule of n steps; None: they are all of it
    strides: number of strides down; -1 is one up
    Source: diffusers DDIMScheduler.step, PNDMScheduler.step_plms.
    """
    t = nearest_t(at, levels.sigmas) - strides * (len(levels.sigmas) // (steps or len(sigmas) - 1))
    return np.where(t >= 0, levels.sigmas[np.maximum(t, 0)], sigmas[-1]).tolist()


@sampler
def ddim_strided(
    model, x, sigmas, noise=no_noise, callback=no_callback, eta=0.0, levels=SD_LEVELS, steps: int | None = None
):
    """Sample with DDIM whose steps lead to timestep t - T // n, even if the schedule's next timestep is another.

        x <- an ancestral step from x to sigma', the level of t - T // n
        x <- x sqrt((1 + sigma_next^2) / (1 + sigma'^2))

    The model is then called at sigma_next, with latents of level sigma' that are rescaled to the variance of
    sigma_next. If timesteps are T // n apart, as with diffusers' spacing "leading", this equals euler, and with eta
    euler_ancestral. They are not with "linspace", nor with "trailing" if n does not divide T.

    sigmas: [n + 1], falling; the last one stands for all timesteps below 0
    noise:  called once a step if eta is not 0, except in a step to 0
    levels: the model's T levels
    steps:  n, if the sigmas are only the end of a schedule of n steps; None: they are all of it
    Source: Song et al. 2021 (DDIM), eq. 12 and 16; diffusers DDIMScheduler.
    """
    lower = a_stride_from(sigmas[:-1], sigmas, levels, steps)
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        after = lower[i]
        sigma_down, sigma_up, _ = ancestral_step(sigma, after, eta)
        d = (x - denoised) / sigma
        dt = sigma_down - sigma
        x = x + d * dt
        if eta and after:
            x = x + noise(sigma, after) * sigma_up
        x = x * math.sqrt((1 + sigma_next**2) / (1 + after**2))
    return x
