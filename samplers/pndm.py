import math

import numpy as np

from refsd.samplers.ddim_strided import a_stride_from
from refsd.samplers.ipndm import ADAMS_BASHFORTH
from refsd.samplers.latents import sampler, scaled
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.step import intervals, no_callback, no_noise


@sampler
def pndm(model, x, sigmas, noise=no_noise, callback=no_callback, levels=SD_LEVELS, in_v=False):
    """Sample as diffusers' PNDM does: plms on latents of unit variance, with steps to timestep t - T // n.

        y = x / r(sigma),  r(sigma) = sqrt(1 + sigma^2)
        y <- (r(sigma) y + (sigma' - sigma) (55 eps - 59 eps_1 + 37 eps_2 - 9 eps_3) / 24) / r(sigma')

    sigma' is the level of t - T // n; the next model call gets the same y at the schedule's next sigma. The first
    step is repeated with the mean of its eps and the next one's, from the level of the second timestep + T // n, so
    the model is called twice at the second timestep. A run of one step is Euler's method. If timesteps are T // n
    apart, runs of two or more steps equal plms.

    sigmas: [n + 1], falling; the last one stands for all timesteps below 0
    noise:  not used
    levels: the model's T levels
    in_v:   extrapolate v instead of eps, and convert it to eps at the step's own level
    Source: Liu et al. 2022 (PNDM), eq. 9 and 12; diffusers PNDMScheduler with skip_prk_steps.
    """
    lower = a_stride_from(sigmas[:-1], sigmas, levels)
    answers: list[np.ndarray] = []
    y = x / _root(float(sigmas[0]))
    for i, sigma, sigma_next in intervals(sigmas):
        x = scaled(y, _root(sigma))
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        answer = _answer(y, denoised, sigma, in_v)
        answers = [answer, *answers[:3]]
        weights = ADAMS_BASHFORTH[len(answers)]
        mean = weights[0] * answer
        for c, older in zip(weights[1:], answers[1:], strict=True):
            mean = mean + c * older
        y_2 = _moved(y, mean, sigma, lower[i], in_v)
        if i == 0 and len(sigmas) > 2:
            denoised_2 = model(scaled(y_2, _root(sigma_next)), sigma_next)
            mean = (answer + _answer(y_2, denoised_2, sigma_next, in_v)) / 2
            (sigma,) = a_stride_from(sigmas[1:2], sigmas, levels, strides=-1)
            y_2 = _moved(y, mean, sigma, sigma_next, in_v)
        y = y_2
    return y * _root(float(sigmas[-1]))


def _root(sigma: float) -> float:
    return math.sqrt(1 + sigma**2)


def _answer(y: np.ndarray, denoised: np.ndarray, sigma: float, in_v: bool) -> np.ndarray:
    """Convert denoised to eps = (r y - denoised) / sigma, or with in_v to v = (y - r denoised) / sigma."""
    root = _root(sigma)
    return (y - root * denoised) / sigma if in_v else (root * y - denoised) / sigma


def _moved(y: np.ndarray, answer: np.ndarray, sigma: float, after: float, in_v: bool) -> np.ndarray:
    """Step from sigma to `after`: (r y + (after - sigma) eps) / r(after);  in_v: eps = (v + sigma y) / r"""
    root, dt = _root(sigma), after - sigma
    eps = (answer + sigma * y) / root if in_v else answer
    return (root * y + dt * eps) / _root(after)
