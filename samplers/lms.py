import functools

import numpy as np

from refsd.kernels.lagrange import lagrange_integrals
from refsd.kernels.multistep import multistep
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals, no_noise


@functools.cache
def gauss_legendre(points: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights on -1 .. 1."""
    return np.polynomial.legendre.leggauss(points)


def adams_bashforth(nodes: np.ndarray, start: float, end: float) -> list[float]:
    """Weights of past slopes in the integral from start to end, by the polynomial through them.

        c_j = int_start^end prod_{k != j} (s - nodes_k) / (nodes_j - nodes_k) ds

    nodes: [order], where the slopes were taken; -> [order]
    The integral is exact: Gauss-Legendre with half as many points as nodes. k-diffusion integrates with a relative
    tolerance of 1e-4, which for these polynomials is as exact.
    """
    return lagrange_integrals(nodes, start, end, *gauss_legendre((len(nodes) + 1) // 2)).tolist()


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
    ds: list[np.ndarray] = []
    rising = np.ascontiguousarray(sigmas[::-1], np.float64)
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        nodes = rising[len(rising) - 1 - i :][: len(ds) + 1]
        x, d = multistep(x, denoised, sigma, adams_bashforth(nodes, sigma, sigma_next), ds)
        ds = [d, *ds][: order - 1]
    return x
