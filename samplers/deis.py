import math

import numpy as np

from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, no_noise


def log_polynomial_weights(nodes: np.ndarray, start: float, end: float) -> np.ndarray:
    """Weights of past noise predictions in the integral over sigma, by the polynomial in ln sigma through them.

        c_j = int_start^end prod_{k != j} (ln s - ln nodes_k) / (ln nodes_j - ln nodes_k) ds

    nodes: [order]; -> [order]
    32-point Gauss-Legendre in ln s: exact to rounding for steps of a factor below 10^4.
    """
    points, weights = np.polynomial.legendre.leggauss(32)
    a, b, logs = math.log(start), math.log(end), np.log(nodes)
    u = (a + b) / 2 + (b - a) / 2 * points
    c = np.empty(len(nodes))
    for j in range(len(nodes)):
        others = np.delete(logs, j)
        basis = np.prod((u[:, None] - others) / (logs[j] - others), axis=1)
        c[j] = (b - a) / 2 * np.dot(weights, basis * np.exp(u))
    return c


def deis(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
    order: int = 3,
) -> np.ndarray:
    """DEIS (log-rho): the noise prediction extrapolated in ln sigma, integrated over sigma. One call a step.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 takes denoised
    noise:  never drawn from
    order:  predictions used, where there are so many yet
    -> latents at sigmas[-1], dtype of x
    Source: Zhang & Chen 2023 (DEIS), eq. 15 with rho = sigma; diffusers DEISMultistepScheduler.
    """
    past: list[np.ndarray] = []
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        past = [(x - denoised) / sigma, *past[: order - 1]]
        nodes = np.asarray(sigmas[i - len(past) + 1 : i + 1][::-1], np.float64)
        for c, eps in zip(log_polynomial_weights(nodes, sigma, sigma_next), past, strict=True):
            x = x + eps * float(c)
    return x
