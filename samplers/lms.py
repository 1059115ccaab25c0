import functools

import numpy as np

from refsd.kernels.lagrange_steps import lagrange_steps
from refsd.samplers.latents import sampler
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals, no_noise


@functools.cache
def gauss_legendre(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights on -1 .. 1."""
    return np.polynomial.legendre.leggauss(points)


def adams_bashforth(sigmas: np.ndarray, order: int) -> list[list[float]]:
    """Of every step: weights of the last slopes in its integral, by the polynomial through them.

        c_j = int_sigma_i^sigma_{i+1} prod_{k != j} (s - sigma_{i-k}) / (sigma_{i-j} - sigma_{i-k}) ds

    sigmas: [n + 1]; -> [n][order], newest first, 0 where there are not so many slopes yet
    The integral is exact: Gauss-Legendre with half as many points as nodes. k-diffusion integrates with a relative
    tolerance of 1e-4, which for these polynomials is as exact.
    """
    nodes = np.ascontiguousarray(sigmas, np.float64)
    used = np.minimum(np.arange(1, len(nodes)), order)
    return lagrange_steps(nodes, 0, used, order, *gauss_legendre((order + 1) // 2)).tolist()


@sampler
def lms(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
    order: int = 4,
) -> np.ndarray:
    """Linear multistep (Adams-Bashforth) on unevenly spaced sigmas: the last slopes, extrapolated. One call a step.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling
    noise:  never drawn from
    order:  slopes used, where there are so many yet
    -> latents at sigmas[-1], dtype of x
    Source: k-diffusion sample_lms.
    """
    weights = adams_bashforth(sigmas, order)
    ds: list[np.ndarray] = []
    for i, sigma, _ in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        d = (x - denoised) / sigma
        ds = [d, *ds][:order]
        x = sum((c * d for c, d in zip(weights[i], ds, strict=False)), start=x)
    return x
