"""Karras et al.'s stochasticity: noise added before a step, so that the ODE solver also removes some."""

import math
from typing import NamedTuple

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.step import StepNoise


class Churn(NamedTuple):
    """
    s_churn:      how much in a whole trajectory; 0 adds nothing
    s_tmin:       added where s_tmin <= sigma <= s_tmax
    s_noise:      standard deviation of what is added
    """

    s_churn: float = 0.0
    s_tmin: float = 0.0
    s_tmax: float = math.inf
    s_noise: float = 1.0


NO_CHURN = Churn()


def churned(x: np.ndarray, sigma: float, steps: int, noise: StepNoise, churn: Churn) -> tuple[np.ndarray, float]:
    """Raise the noise level: x + sqrt(sigma_hat^2 - sigma^2) s_noise n, sigma_hat = sigma (1 + gamma).

        gamma = min(s_churn / steps, sqrt(2) - 1)

    steps: of the whole trajectory
    -> x_hat, sigma_hat
    Source: Karras et al. 2022, algorithm 2, lines 4 to 6.
    """
    gamma = min(churn.s_churn / steps, math.sqrt(2) - 1) if churn.s_tmin <= sigma <= churn.s_tmax else 0.0
    if gamma == 0:
        return x, sigma
    sigma_hat = sigma * (gamma + 1)
    eps = noise(sigma, sigma_hat)
    return combine(1.0, x, churn.s_noise * math.sqrt(sigma_hat**2 - sigma**2), eps), sigma_hat
