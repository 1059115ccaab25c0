"""Stable Diffusion's noise levels, with a loop and no interpolation routine."""

import math


def training_sigmas(steps=1000, start=0.00085, end=0.012):
    kept, levels = 1.0, []
    for i in range(steps):
        root = math.sqrt(start) * (steps - 1 - i) / (steps - 1) + math.sqrt(end) * i / (steps - 1)
        kept *= 1 - root * root
        levels.append(math.sqrt(1 / kept - 1))
    return levels


def t_to_sigma(t, levels):
    """Geometric mean of the neighbours, weighted."""
    low = min(int(t), len(levels) - 2)
    w = t - low
    return levels[low] ** (1 - w) * levels[low + 1] ** w


def karras(n, smin, smax, rho=7):
    a, b = smax ** (1 / rho), smin ** (1 / rho)
    return [(a * (n - 1 - i) / (n - 1) + b * i / (n - 1)) ** rho for i in range(n)] + [0.0]
