import numpy as np

from refsd.kernels.lagrange import log_lagrange_integrals
from refsd.kernels.multistep import multistep
from refsd.samplers.lms import gauss_legendre
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals, no_noise


def log_polynomial_weights(nodes: np.ndarray, start: float, end: float) -> list[float]:
    """Weights of past noise predictions in the integral over sigma, by the polynomial in ln sigma through them.

        c_j = int_start^end prod_{k != j} (ln s - ln nodes_k) / (ln nodes_j - ln nodes_k) ds

    nodes: [order]; -> [order]
    16-point Gauss-Legendre in ln s: exact to rounding for steps of a factor below 10^4.
    """
    return log_lagrange_integrals(nodes, start, end, *gauss_legendre(16)).tolist()


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
    rising = np.ascontiguousarray(sigmas[::-1], np.float64)
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        nodes = rising[len(rising) - 1 - i :][: len(past) + 1]
        x, eps = multistep(x, denoised, sigma, log_polynomial_weights(nodes, sigma, sigma_next), past)
        past = [eps, *past][: order - 1]
    return x
