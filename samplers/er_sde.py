import math

import numpy as np

from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise


def scaler(lam: float | np.ndarray):
    """How fast the noise is renewed: lambda (e^(lambda^0.3) + 10)."""
    return lam * (np.exp(np.power(lam, 0.3)) + 10)


def er_sde(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    s_noise: float = 1.0,
    points: int = 200,
) -> np.ndarray:
    """Extended reverse-time SDE, three stages: the past differences of denoised under its own integral.

        r = scaler(sigma_next) / scaler(sigma),  S_k = int_{sigma_next}^{sigma} (l - sigma)^k / scaler(l) dl
        x <- r x + (1 - r) denoised + (dt + S_0 scaler(sigma_next)) d' + (dt^2 / 2 + S_1 scaler(sigma_next)) d''
             + sqrt(sigma_next^2 - r^2 sigma^2) s_noise n

    d', d'' are divided differences over the last two and three steps; the integrals are sums over left ends.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling; a step to 0 takes denoised
    noise:  drawn from once a step where s_noise is not 0, not where the next sigma is 0
    points: of the sums
    -> latents at sigmas[-1], dtype of x
    Source: Cui et al. 2023 (Elucidating the solution space of extended reverse-time SDE), algorithm 3;
    ComfyUI sample_er_sde. stable-diffusion.cpp calls s_noise eta, and switches the noise by it only.
    """
    past: list[np.ndarray] = []
    slope = None
    for i in range(len(sigmas) - 1):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        r = float(scaler(sigma_next) / scaler(sigma))
        x = r * x + (1 - r) * denoised
        if past:
            dt = sigma_next - sigma
            width = -dt / points
            lam = sigma_next + np.arange(points) * width
            s = float(np.sum(1 / scaler(lam)) * width)
            slope_last, slope = slope, (denoised - past[0]) / (sigma - float(sigmas[i - 1]))
            x = x + (dt + s * float(scaler(sigma_next))) * slope
            if slope_last is not None:
                s_u = float(np.sum((lam - sigma) / scaler(lam)) * width)
                curve = (slope - slope_last) / ((sigma - float(sigmas[i - 2])) / 2)
                x = x + (dt**2 / 2 + s_u * float(scaler(sigma_next))) * curve
        if s_noise > 0:
            up = math.sqrt(max(sigma_next**2 - (r * sigma) ** 2, 0.0))
            x = x + noise(sigma, sigma_next).astype(x.dtype) * (s_noise * up)
        past = [denoised]
    return x
