from refsd.samplers.ancestral import ancestral_step
from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback


@sampler
def gradient_estimation_ancestral(
    model, x, sigmas, noise, callback=no_callback, eta=1.0, s_noise=1.0, gamma=2.0, ancestral=ancestral_step
):
    """Sample with gradient_estimation to a lower sigma, then add fresh noise up to the next: euler_ge with eta.

    Arguments: as in gradient_estimation. noise: called once a step if eta is not 0, except in a step to 0
    ancestral: flow_ancestral_step for a rectified flow
    Source: stable-diffusion.cpp sample_gradient_estimation.
    """
    d_last = None
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        sigma_down, sigma_up, scale = ancestral(sigma, sigma_next, eta)
        d = (x - denoised) / sigma
        dt = sigma_down - sigma
        d_bar = d if d_last is None else gamma * d + (1 - gamma) * d_last
        x = scale * (x + d_bar * dt)
        if eta:
            x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
        d_last = d
    return x
