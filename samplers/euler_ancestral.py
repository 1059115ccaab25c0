from refsd.samplers.ancestral import ancestral_step
from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback


@sampler
def euler_ancestral(model, x, sigmas, noise, callback=no_callback, eta=1.0, s_noise=1.0, ancestral=ancestral_step):
    """Sample with Euler steps down to a lower sigma, each followed by fresh noise up to the next sigma.

        x <- scale * (x + (x - denoised) / sigma * (down - sigma)) + up * noise

    down, up, scale: the sigma that the step goes down to, the noise's standard deviation, and x's factor before it.
    By ancestral.py down^2 + up^2 = sigma_next^2 and scale = 1; of a flow (scale down)^2 + up^2 = sigma_next^2.

    sigmas: [n + 1], falling
    noise:  called once a step, except in a step to 0
    ancestral: flow_ancestral_step for a rectified flow
    Source: k-diffusion sample_euler_ancestral.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        sigma_down, sigma_up, scale = ancestral(sigma, sigma_next, eta)
        d = (x - denoised) / sigma
        dt = sigma_down - sigma
        x = scale * (x + d * dt)
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next) * (s_noise * sigma_up)
    return x
