"""SEEDS: exponential integrators of the reverse SDE in t = -ln sigma, with two or three calls a step."""

import math

import numpy as np

from refsd.samplers.latents import sampler
from refsd.samplers.step import intervals, no_callback, no_noise

# What `weights` may be: (k = (1 + eta) h, position r of the second call) -> weights of denoised and denoised_2


def midpoint(k: float, r: float) -> tuple[float, float]:
    """Use phi_1 alone: (1 - e^-k) times denoised moved by 1 / 2r of the way to denoised_2."""
    whole = -math.expm1(-k)
    return whole * (1 - 1 / (2 * r)), whole / (2 * r)


def refined(k: float, r: float) -> tuple[float, float]:
    """Use phi_2: integrate the line through denoised and denoised_2.

    b2 = (k - 1 + e^-k) / (k r),  b1 = 1 - e^-k - b2
    """
    b2 = (math.expm1(-k) + k) / (k * r)
    return -math.expm1(-k) - b2, b2


def spread(part: float) -> float:
    """Compute the weight of new noise in a path w of unit noise after `part` = eta h: sqrt(1 - e^(-2 part))."""
    return math.sqrt(-math.expm1(-2 * part))


def advanced(w: np.ndarray, part: float, n: np.ndarray) -> np.ndarray:
    """Advance a path w of unit noise by `part` = eta h: e^-part w + sqrt(1 - e^(-2 part)) n."""
    return math.exp(-part) * w + spread(part) * n


@sampler
def seeds_2(model, x, sigmas, noise, callback=no_callback, eta=1.0, s_noise=1.0, r=0.5, weights=midpoint):
    """Sample with SEEDS-2: a noisy step to sigma_1, at r of the step in ln sigma, then a step over the whole.

        x_1 = e^(-r k) x + (1 - e^(-r k)) denoised + sigma_1 w_1,  k = (1 + eta) h
        x <- e^-k x + b1 denoised + b2 denoised_2 + sigma_next w

    w is one path of noise; w_1 is its value at sigma_1.

    sigmas:  [n + 1], falling; a step to 0 gives denoised
    noise:   called twice a step, for sigma to sigma_1 and sigma_1 to sigma_next; not if eta or s_noise is 0
    weights: midpoint or refined
    Source: Gonzalez et al. 2023 (SEEDS), algorithm 2; ComfyUI sample_seeds_2.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        k = (1 + eta) * h
        sigma_1 = sigma * math.exp(-r * h)
        noisy = eta and s_noise

        # Step 1: to sigma_1
        x_1 = math.exp(-r * k) * x - math.expm1(-r * k) * denoised
        if noisy:
            w = spread(r * eta * h) * noise(sigma, sigma_1)
            x_1 = x_1 + sigma_1 * s_noise * w
        denoised_2 = model(x_1, sigma_1)

        # Step 2: over the whole step
        b1, b2 = weights(k, r)
        x = math.exp(-k) * x + b1 * denoised + b2 * denoised_2
        if noisy:
            w = advanced(w, (1 - r) * eta * h, noise(sigma_1, sigma_next))
            x = x + sigma_next * s_noise * w
    return x


@sampler
def exp_heun_2_x0(model, x, sigmas, noise=no_noise, callback=no_callback):
    """Sample with Heun's method as an exponential integrator: seeds_2 with r = 1, `refined`, without noise.

    Arguments: as in seeds_2. noise: not used
    Source: ComfyUI sample_exp_heun_2_x0; with noise, whose second draw of a step has weight 0,
    sample_exp_heun_2_x0_sde.
    """
    return seeds_2(model, x, sigmas, noise, callback, eta=0.0, r=1.0, weights=refined)


@sampler
def seeds_3(model, x, sigmas, noise, callback=no_callback, eta=1.0, s_noise=1.0):
    """Sample with SEEDS-3: two noisy inner steps, to one third and two thirds of the step in ln sigma.

        x_1 = ... (1 - e^(-k/3)) denoised                 at sigma_1
        x_2 = ... the line through denoised, denoised_2   at sigma_2
        x <- ... the line through denoised, denoised_3    at sigma_next

    Each line begins with e^(-k_j) x and ends with sigma_j w_j, where w is the path of noise of seeds_2.

    sigmas: [n + 1], falling; a step to 0 gives denoised
    noise:  called three times a step; not if eta or s_noise is 0
    Source: Gonzalez et al. 2023 (SEEDS), algorithm 3; ComfyUI sample_seeds_3.
    """
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        callback(i, sigma, x, denoised)
        if sigma_next == 0:
            return denoised
        h = math.log(sigma / sigma_next)
        k = (1 + eta) * h
        sigma_1, sigma_2 = sigma * math.exp(-h / 3), sigma * math.exp(-2 * h / 3)
        part = eta * h / 3
        noisy = eta and s_noise

        # Step 1: to sigma_1
        x_1 = math.exp(-k / 3) * x - math.expm1(-k / 3) * denoised
        if noisy:
            w = spread(part) * noise(sigma, sigma_1)
            x_1 = x_1 + sigma_1 * s_noise * w
        denoised_2 = model(x_1, sigma_1)

        # Step 2: to sigma_2
        b1, b2 = refined(2 * k / 3, 1 / 2)
        x_2 = math.exp(-2 * k / 3) * x + b1 * denoised + b2 * denoised_2
        if noisy:
            w = advanced(w, part, noise(sigma_1, sigma_2))
            x_2 = x_2 + sigma_2 * s_noise * w
        denoised_3 = model(x_2, sigma_2)

        # Step 3: over the whole step
        b1, b2 = refined(k, 2 / 3)
        x = math.exp(-k) * x + b1 * denoised + b2 * denoised_3
        if noisy:
            w = advanced(w, part, noise(sigma_2, sigma_next))
            x = x + sigma_next * s_noise * w
    return x
