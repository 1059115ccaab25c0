import math

import numpy as np

from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback


def scaler(lam: float | np.ndarray):
    """Compute the noise scaler lambda (e^(lambda^0.3) + 10), which sets how fast the noise is replaced."""
    return lam * (np.exp(np.exp(0.3 * np.log(lam))) + 10)


@sampler
def er_sde(model, x, sigmas, noise, callback=no_callback, s_noise=1.0, points=200):
    """Sample the extended reverse-time SDE of order 3: integrate the past differences of denoised.

        r = scaler(sigma_next) / scaler(sigma),  S_k = int_{sigma_next}^{sigma} (l - sigma)^k / scaler(l) dl
        x <- r x + (1 - r) denoised + (dt + S_0 scaler(sigma_next)) d' + (dt^2 / 2 + S_1 scaler(sigma_next)) d''
             + sqrt(sigma_next^2 - r^2 sigma^2) s_noise n

    d', d'' are divided differences over the last two and three steps; the integrals are left Riemann sums.

    sigmas: [n + 1], falling; a step to 0 gives denoised
    noise:  called once a step if s_noise is not 0, except in a step to 0
    points: number of points of the sums
    Source: Cui et al. 2023 (Elucidating the solution space of extended reverse-time SDE), algorithm 3;
    ComfyUI sample_er_sde. stable-diffusion.cpp calls s_noise eta, and only switches the noise on or off by it.
    """
    positive = sigmas[sigmas > 0].astype(np.float64)
    scale, (s_0, s_1) = scaler(positive).tolist(), _integrals(positive, points)
    old_denoised = old_d1 = None
    h = h_last = 0.0
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        r = scale[i + 1] / scale[i]
        dt = sigma_next - sigma
        d1 = None
        x = r * x + (1 - r) * denoised
        if old_denoised is not None:
            d1 = (denoised - old_denoised) / h
            x = x + (dt + s_0[i] * scale[i + 1]) * d1
        if d1 is not None and old_d1 is not None:
            d2 = (d1 - old_d1) / ((h + h_last) / 2)
            x = x + (dt**2 / 2 + s_1[i] * scale[i + 1]) * d2
        if s_noise > 0:
            x = x + noise(sigma, sigma_next) * (s_noise * math.sqrt(max(sigma_next**2 - (r * sigma) ** 2, 0.0)))
        old_denoised, old_d1 = denoised, d1
        h, h_last = dt, h
    return x


def _integrals(sigmas: np.ndarray, points: int) -> tuple[list[float], list[float]]:
    """Compute S_0 and S_1 of every step. sigmas: [n + 1], above 0"""
    sigma, sigma_next = sigmas[:-1, None], sigmas[1:, None]
    width = (sigma - sigma_next) / points
    lam = sigma_next + np.arange(points) * width
    share = width / scaler(lam)
    return share.sum(axis=1).tolist(), ((lam - sigma) * share).sum(axis=1).tolist()
