"""Noise levels of flows and of EDM, and diffusers' spacings, one number after another."""

import math


def shifted(t, shift):
    """shift t / (1 + (shift - 1) t) as odds: t / (1 - t) times shift."""
    if t >= 1:
        return 1.0
    odds = shift * t / (1 - t)
    return odds / (1 + odds)


def flow_uniform(n, shift):
    return [shifted((n - i) / n, shift) for i in range(n)] + [0.0]


def flow_linspace(n, shift):
    low = shifted(1 / 1000, shift)
    return [shifted(1 + (low - 1) * i / (n - 1), shift) for i in range(n)] + [0.0]


def flow_discrete(n, shift):
    """Timesteps 999 .. 0 evenly; the level of t is that of (t + 1) / 1000."""
    return [shifted((999 - 999 * i / (n - 1) + 1) / 1000, shift) for i in range(n)] + [0.0]


def flux_shift(tokens):
    return math.exp(0.5 + (tokens - 256) * 0.65 / 3840)


def edm_karras(n):
    a, b = 120 ** (1 / 7), 0.002 ** (1 / 7)
    return [((n - 1 - i) / (n - 1) * a + i / (n - 1) * b) ** 7 for i in range(n)] + [0.0]


def leading_timesteps(n, offset):
    return [1000 // n * (n - 1 - i) + offset for i in range(n)]


def trailing_timesteps(n):
    return [math.floor(1000 - 1000 * i / n + 0.5) - 1 for i in range(n)]


def zero_snr(kept):
    first, last = math.sqrt(kept[0]), math.sqrt(kept[-1])
    return [((math.sqrt(a) - last) * first / (first - last)) ** 2 for a in kept]
