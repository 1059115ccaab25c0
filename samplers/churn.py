"""Churn (Karras et al.): add noise before a step, which the ODE solver then removes."""

import math
from typing import NamedTuple

import numpy as np

from refsd.samplers.step import StepNoise


class Churn(NamedTuple):
    """Parameters of churn.

    s_churn:    amount of noise over the whole trajectory; 0 adds and draws none
    s_tmin:     noise is added if s_tmin <= sigma <= s_tmax
    s_noise:    standard deviation of the noise
    every_step: True: draw in every step and discard the noise outside s_tmin .. s_tmax, as k-diffusion and Forge
                do; False: draw only if noise is added, as ComfyUI does (except in heunpp2)
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

    steps: number of steps of the whole trajectory
    noise: called every time if churn.every_step, otherwise only if gamma > 0
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
