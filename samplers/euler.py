from refsd.samplers.churn import NO_CHURN, churned
from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback, no_noise


@sampler
def euler(model, x, sigmas, noise=no_noise, callback=no_callback, churn=NO_CHURN):
    """Sample with Euler steps on the probability flow ODE  dx/dsigma = (x - denoised(x, sigma)) / sigma.

    x:      latents at sigmas[0]
    sigmas: [n + 1], falling
    noise:  called in the steps in which `churn` draws noise
    -> latents at sigmas[-1], dtype of x
    Source: Karras et al. 2022, algorithm 2 without its correction; k-diffusion sample_euler.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        x, sigma_hat = churned(x, sigma, len(sigmas) - 1, noise, churn)
        denoised = model(x, sigma_hat)
        callback(i, sigma, x, denoised)
        d = (x - denoised) / sigma_hat
        dt = sigma_next - sigma_hat
        x = x + d * dt
    return x
