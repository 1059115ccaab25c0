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
    steps, churns, levels = len(sigmas) - 1, churn.s_churn > 0, sigmas.tolist()
    for i, sigma, sigma_next in intervals(sigmas):
        x, sigma_hat = churned(x, sigma, steps, noise, churn) if churns else (x, sigma)
        denoised = model(x, sigma_hat)
        if callback:
            callback(i, sigma, x, denoised)
        ahead = levels[i + 1 : min(i + 3, steps)]
        dt, w = sigma_next - sigma_hat, [end / ((len(ahead) + 1) * levels[0]) for end in ahead]
        # x + dt (w_1 d + w_2 d_2 + w_3 d_3), each d being (x_n - denoised_n) / sigma_n, which in denoised alone is
        # x + dt (d + (w_2 + w_3) / sigma_2 (denoised - denoised_2) + w_3 / sigma_3 (denoised_2 - denoised_3))
        x_n, denoised_n, sigma_n, share = x, denoised, sigma_hat, dt / sigma_hat
        terms = [1 + share, x]
        for n, end in enumerate(ahead):
            late = dt * sum(w[n:]) / end
            terms += [late - share, denoised_n]
            x_n = combine(end / sigma_n, x_n, 1 - end / sigma_n, denoised_n)
            denoised_n, sigma_n, share = model(x_n, end), end, late
        x = combine(*terms, -share, denoised_n)
    return x
