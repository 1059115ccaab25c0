"""Karras et al.'s stochasticity: noise added before a step, so that the ODE solver also removes some."""

import math
from typing import NamedTuple

import numpy as np

from refsd.samplers.step import StepNoise


class Churn(NamedTuple):
    """
    s_churn:    how much in a whole trajectory; 0 adds nothing, and draws nothing
    s_tmin:     noise is added where s_tmin <= sigma <= s_tmax
    s_noise:    standard deviation of the noise
    every_step: draw at every step, and drop what is drawn outside of s_tmin .. s_tmax, as k-diffusion and Forge do;
                False draws only where noise is added, as ComfyUI does (but for heunpp2)
    """

    s_churn: float = 0.0
    s_tmin: float = 0.0
    s_tmax: float = math.inf
    s_noise: float = 1.0
    every_step: bool = True


NO_CHURN = Churn()


def churned(x: np.ndarray, sigma: float, steps: int, noise: StepNoise, churn: Churn) -> tuple[np.ndarray, float]:
    """Raise the noise level: x + sqrt(sigma_hat^2 - sigma^2) s_noise n, sigma_hat = sigma (1 + gamma).

        gamma = min(s_churn / steps, sqrt(2) - 1)

    steps: of the whole trajectory
    noise: drawn from in every call, or only where gamma is above 0: churn.every_step
    -> x_hat, sigma_hat
    Source: Karras et al. 2022, algorithm 2, lines 4 to 6; k-diffusion, Forge and ComfyUI sample_euler.
    """
    if churn.s_churn == 0:
        return x, sigma
    gamma = min(churn.s_churn / steps, math.sqrt(2) - 1) if churn.s_tmin <= sigma <= churn.s_tmax else 0.0
    sigma_hat = sigma * (gamma + 1)
    if gamma == 0:
        if churn.every_step:
            noise(sigma, sigma_hat)
        return x, sigma
    eps = noise(sigma, sigma_hat) * churn.s_noise
    return x + eps * math.sqrt(sigma_hat**2 - sigma**2), sigma_hat
