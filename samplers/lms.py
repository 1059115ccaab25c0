import functools

import numpy as np

from refsd.kernels.lagrange_steps import lagrange_steps
from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback, no_noise


@functools.cache
def gauss_legendre(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the points and weights of Gauss-Legendre quadrature on -1 .. 1."""
    return np.polynomial.legendre.leggauss(points)


def adams_bashforth(sigmas: np.ndarray, order: int) -> list[list[float]]:
    """Compute each step's weights of the last slopes: the integral of the polynomial through them.

        c_j = int_sigma_i^sigma_{i+1} prod_{k != j} (s - sigma_{i-k}) / (sigma_{i-j} - sigma_{i-k}) ds

    sigmas: [n + 1]; -> [n][order], newest first; 0 for slopes that do not exist yet
    The integral is exact: Gauss-Legendre with half as many points as nodes. k-diffusion integrates numerically with
    a relative tolerance of 1e-4, which is equally exact for these polynomials.
    """
    nodes = np.ascontiguousarray(sigmas, np.float64)
    used = np.minimum(np.arange(1, len(nodes)), order)
    return lagrange_steps(nodes, 0, used, order, *gauss_legendre((order + 1) // 2)).tolist()


@sampler
def lms(model, x, sigmas, noise=no_noise, callback=no_callback, order=4):
    """Sample with linear multistep (Adams-Bashforth) on uneven sigmas: extrapolate past slopes. One call a step.

    sigmas: [n + 1], falling
    noise:  not used
    order:  slopes used, once there are that many
    Source: k-diffusion sample_lms.
    """
    weights = adams_bashforth(sigmas, order)
    ds: list[np.ndarray] = []
    for i, sigma, _ in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        d = (x - denoised) / sigma
        ds = [d, *ds][:order]
        for c, d in zip(weights[i], ds, strict=False):
            x = x + c * d
    return x
