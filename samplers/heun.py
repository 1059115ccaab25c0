from refsd.samplers.churn import NO_CHURN, churned
from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback, no_noise


@sampler
def heun(model, x, sigmas, noise=no_noise, callback=no_callback, churn=NO_CHURN):
    """Sample with Heun's method: the mean of the slopes at both ends of an Euler step. Order 2, two calls a step.

    sigmas: [n + 1], falling; a step to 0 is an Euler step
    noise:  called in the steps in which `churn` draws noise
    Source: Karras et al. 2022, algorithm 2; k-diffusion sample_heun.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        x, sigma_hat = churned(x, sigma, len(sigmas) - 1, noise, churn)
        denoised = model(x, sigma_hat)
        callback(i, sigma, x, denoised)
        d = (x - denoised) / sigma_hat
        dt = sigma_next - sigma_hat
        if sigma_next == 0:
            x = x + d * dt
        else:
            x_2 = x + d * dt
            denoised_2 = model(x_2, sigma_next)
            d_2 = (x_2 - denoised_2) / sigma_next
            d_prime = (d + d_2) / 2
            x = x + d_prime * dt
    return x
