import numpy as np

from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, no_noise


def adams_bashforth(nodes: np.ndarray, start: float, end: float) -> np.ndarray:
    """Weights of past slopes in the integral from start to end, by the polynomial through them.

        c_j = int_start^end prod_{k != j} (s - nodes_k) / (nodes_j - nodes_k) ds

    nodes: [order], where the slopes were taken; -> [order]
    The integral is exact: Gauss-Legendre with as many points as nodes. k-diffusion integrates with a relative
    tolerance of 1e-4, which for these polynomials is as exact.
    """
    points, weights = np.polynomial.legendre.leggauss(len(nodes))
    s = (end + start) / 2 + (end - start) / 2 * points
    c = np.empty(len(nodes))
    for j, node in enumerate(nodes):
        others = np.delete(nodes, j)
        basis = np.prod((s[:, None] - others) / (node - others), axis=1)
        c[j] = (end - start) / 2 * np.dot(weights, basis)
    return c


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
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        ds = [(x - denoised) / sigma, *ds[: order - 1]]
        nodes = np.asarray(sigmas[i - len(ds) + 1 : i + 1][::-1], np.float64)
        for c, d in zip(adams_bashforth(nodes, sigma, sigma_next), ds, strict=True):
            x = x + d * float(c)
    return x
