"""Euler as DDIM writes it: the next latent is a mix of the latent and the denoised one."""

from itertools import pairwise


def euler(model, x, sigmas):
    for sigma, sigma_next in pairwise(sigmas):
        ratio = sigma_next / sigma
        x = ratio * x + (1 - ratio) * model(x, sigma)
    return x
