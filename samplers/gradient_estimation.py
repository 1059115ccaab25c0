from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback, no_noise


@sampler
def gradient_estimation(model, x, sigmas, noise=no_noise, callback=no_callback, gamma=2.0):
    """Sample with Euler steps along the extrapolated slope gamma d + (1 - gamma) d_last.

    sigmas: [n + 1], falling; a step to 0 gives denoised
    noise:  not used
    gamma:  1 is Euler's method
    Source: Permenter & Yuan 2024 (Interpreting and improving diffusion models from an optimization
    perspective), algorithm 2; ComfyUI sample_gradient_estimation; stable-diffusion.cpp's euler_ge.
    """
    d_last = None
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        d = (x - denoised) / sigma
        dt = sigma_next - sigma
        d_bar = d if d_last is None else gamma * d + (1 - gamma) * d_last
        x = x + d_bar * dt
        d_last = d
    return x
