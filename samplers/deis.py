import numpy as np

from refsd.kernels.lagrange_steps import log_lagrange_steps
from refsd.samplers.latents import sampler
from refsd.samplers.lms import gauss_legendre
from refsd.samplers.step import intervals, no_callback, no_noise


def log_polynomial_weights(sigmas: np.ndarray, order: int, lower_order_final: bool = False) -> list[list[float]]:
    """Compute each step's weights of the last noise predictions: the integral of the polynomial in ln sigma.

        c_j = int_sigma_i^sigma_{i+1} prod_{k != j} (ln s - ln sigma_{i-k}) / (ln sigma_{i-j} - ln sigma_{i-k}) ds

    sigmas: [n + 1]; -> [n][order], newest first; 0 for predictions that do not exist yet, and in a step to 0
    Integrated with 16-point Gauss-Legendre in ln s: exact to rounding if sigma / sigma_next < 10^4.
    """
    nodes = np.ascontiguousarray(sigmas, np.float64)
    used = np.minimum(np.arange(1, len(nodes)), order) * (nodes[1:] > 0)
    if lower_order_final:
        used = np.minimum(used, np.arange(len(nodes) - 1, 0, -1))
    return log_lagrange_steps(nodes, 0, used, order, *gauss_legendre(16)).tolist()


@sampler
def deis(model, x, sigmas, noise=no_noise, callback=no_callback, order=3, lower_order_final=False):
    """Sample with DEIS (log-rho): extrapolate the noise prediction in ln sigma and integrate it. One call a step.

    sigmas: [n + 1], falling; a step to 0 gives denoised
    noise:  not used
    order:  predictions used, once there are that many
    lower_order_final: use at most as many predictions as steps are left
    Source: Zhang & Chen 2023 (DEIS), eq. 15 with rho = sigma; diffusers DEISMultistepScheduler.
    """
    weights = log_polynomial_weights(sigmas, order, lower_order_final)
    epses: list[np.ndarray] = []
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        eps = (x - denoised) / sigma
        epses = [eps, *epses][:order]
        x = sum((c * eps for c, eps in zip(weights[i], epses, strict=False)), start=x)
    return x
