"""Euler a as DDPM's posterior: q(x_next | x, denoised), whose mean and variance Bayes' rule gives.

x_next ~ N(denoised, sigma_next^2) before x is seen; x ~ N(x_next, sigma^2 - sigma_next^2).
"""

from itertools import pairwise


def euler_ancestral(model, x, sigmas, noise):
    for sigma, sigma_next in pairwise(sigmas):
        denoised = model(x, sigma)
        if sigma_next == 0:
            return denoised
        prior, likelihood = 1 / sigma_next**2, 1 / (sigma**2 - sigma_next**2)
        variance = 1 / (prior + likelihood)
        mean = variance * (prior * denoised + likelihood * x)
        x = mean + variance**0.5 * noise(x.shape)
    return x
