import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.churn import NO_CHURN, Churn, churned
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals, no_noise


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
    for i, sigma, sigma_next in intervals(sigmas):
        x, sigma_hat = churned(x, sigma, steps, noise, churn)
        denoised = model(x, sigma_hat)
        if callback:
            callback(i, sigma, x, denoised)
        ahead = sigmas[i + 1 : min(i + 3, steps)].tolist()
        dt, w = sigma_next - sigma_hat, [end / ((len(ahead) + 1) * float(sigmas[0])) for end in ahead]
        # x + dt (w_1 d + w_2 d_2 + w_3 d_3), each d being (x_n - denoised_n) / sigma_n
        x_n, denoised_n, sigma_n = x, denoised, sigma_hat
        share = dt * (1 - sum(w)) / sigma_hat
        terms = [1 + share, x, -share, denoised]
        for end, weight in zip(ahead, w, strict=True):
            x_n = combine(end / sigma_n, x_n, 1 - end / sigma_n, denoised_n)
            denoised_n, sigma_n = model(x_n, end), end
            terms += [dt * weight / end, x_n, -dt * weight / end, denoised_n]
        x = combine(*terms)
    return x
