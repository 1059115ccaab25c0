import math

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.ancestral import NONE
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, Signal, StepNoise, exploding_signal, intervals


def scaler(lam: float | np.ndarray):
    """How fast the noise is renewed: lambda (e^(lambda^0.3) + 10)."""
    return lam * (np.exp(np.exp(0.3 * np.log(lam))) + 10)


def er_sde(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    s_noise: float = 1.0,
    points: int = 200,
    signal: Signal = exploding_signal,
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
    signal: what the data weigh in x, for in_flow_time
    -> latents at sigmas[-1], dtype of x
    Source: Cui et al. 2023 (Elucidating the solution space of extended reverse-time SDE), algorithm 3;
    ComfyUI sample_er_sde. stable-diffusion.cpp calls s_noise eta, and switches the noise by it only.
    """
    positive = sigmas[sigmas > 0].astype(np.float64)
    scale, (s_0, s_1) = scaler(positive).tolist(), _integrals(positive, points)
    levels: list[float] = sigmas.tolist()
    past: list[np.ndarray] = []
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        r = scale[i + 1] / scale[i]
        s = signal(sigma_next)
        kept, whole = s / signal(sigma) * r, s * (1 - r)
        up, n = NONE
        if s_noise > 0:
            up = s * s_noise * math.sqrt(max(sigma_next**2 - (r * sigma) ** 2, 0.0))
            n = noise(sigma, sigma_next)
        if not past:
            x = combine(kept, x, whole, denoised, up, n)
        else:
            dt, h = sigma_next - sigma, sigma - levels[i - 1]
            first = s * (dt + s_0[i] * scale[i + 1])
            if len(past) == 1:
                # first d',  d' = (denoised - past_0) / h
                a = first / h
                x = combine(kept, x, whole + a, denoised, -a, past[0], up, n)
            else:
                # first d' + second d'',  d'' = (d' - d'_last) / ((h + h_last) / 2)
                h_last = levels[i - 1] - levels[i - 2]
                second = s * (dt**2 / 2 + s_1[i] * scale[i + 1]) / ((h + h_last) / 2)
                a, b = (first + second) / h, second / h_last
                x = combine(kept, x, whole + a, denoised, -a - b, past[0], b, past[1], up, n)
        past = [denoised, *past[:1]]
    return x


def _integrals(sigmas: np.ndarray, points: int) -> tuple[list[float], list[float]]:
    """S_0 and S_1 of every step. sigmas: [n + 1], above 0"""
    sigma, sigma_next = sigmas[:-1, None], sigmas[1:, None]
    width = (sigma - sigma_next) / points
    lam = sigma_next + np.arange(points) * width
    share = width / scaler(lam)
    return share.sum(axis=1).tolist(), ((lam - sigma) * share).sum(axis=1).tolist()
