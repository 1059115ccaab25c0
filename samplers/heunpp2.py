import numpy as np

from refsd.samplers.churn import NO_CHURN, Churn, churned
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, no_noise


def heunpp2(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise = no_noise,
    callback: Callback | None = None,
    churn: Churn = NO_CHURN,
) -> np.ndarray:
    """Heun++: the slopes here, one and two steps on, weighed by how large their sigmas are. Three calls a step.

        d' = (1 - w_2 - w_3) d + w_2 d_2 + w_3 d_3,  w_2 = sigma_{i+1} / 3 sigma_0,  w_3 = sigma_{i+2} / 3 sigma_0

    The step before the last leaves d_3 out, and divides by 2 sigma_0; the last is an Euler step. The weights are
    not those of any quadrature: the order is 1.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling
    noise:  drawn from where `churn` says so
    -> latents at sigmas[-1], dtype of x
    Source: Carzit/sd-webui-samplers-scheduler; ComfyUI and Forge, sample_heunpp2.
    """
    steps = len(sigmas) - 1
    for i in range(steps):
        sigma, sigma_next = float(sigmas[i]), float(sigmas[i + 1])
        x, sigma_hat = churned(x, sigma, steps, noise, churn)
        denoised = model(x, sigma_hat)
        if callback:
            callback(i, sigma, x, denoised)
        d = (x - denoised) / sigma_hat
        x_n, d_n, slope = x, d, d
        ahead = min(2, steps - 1 - i)
        for j in range(ahead):
            start = sigma_hat if j == 0 else sigma_next
            end = float(sigmas[i + 1 + j])
            x_n = x_n + d_n * (end - start)
            d_n = (x_n - model(x_n, end)) / end
            slope = slope + (d_n - d) * (end / ((ahead + 1) * float(sigmas[0])))
        x = x + slope * (sigma_next - sigma_hat)
    return x
