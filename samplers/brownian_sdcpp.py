"""The Brownian motion of stable-diffusion.cpp's dpm++2m_sde_bt: not torchsde's, and drawn from C++'s engine."""

import functools
import math

import numpy as np

from refsd.samplers.step import StepNoise

_MASK = 2**64 - 1
_DEPTH = 24
_MODULUS, _MULTIPLIER = 2**31 - 1, 16807


def libstdcxx_normals(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Draw std::normal_distribution<float> from std::default_random_engine, as GNU's library does up to GCC 15.

        x_k = 16807 x_{k-1} mod (2^31 - 1);  u = (x_k - 1) / 2^31 in float
        a, b = 2u - 1 of two consecutive u; repeat until a^2 + b^2 <= 1
        normals b m, a m,  m = sqrt(-2 ln(a^2 + b^2) / (a^2 + b^2))

    Other standard libraries draw other numbers: this reproduces stable-diffusion.cpp's `_bt` as built on Linux.
    seed: only its lower 32 bits are used; -> [shape] float32
    Error: <= 3 ULP against GCC, because the last bit of NumPy's ln may differ; otherwise equal.
    """
    count = math.prod(shape)
    length = 2 * (count // 2 + 1)
    while True:
        u = (_engine(seed & 0xFFFFFFFF, length) - 1).astype(np.float32) / np.float32(2**31)
        u = np.where(u >= 1, np.nextafter(np.float32(1), np.float32(0)), u)
        a, b = (2 * u - 1).reshape(-1, 2).T
        r = a * a + b * b
        kept = (r <= 1) & (r != 0)
        if 2 * int(kept.sum()) >= count:
            break
        length += length // 4 * 2 + 16
    a, b, r = a[kept], b[kept], r[kept]
    m = np.sqrt(-2 * np.log(r) / r)
    return np.stack([b * m, a * m], axis=1).ravel()[:count].reshape(shape)


def _engine(seed: int, length: int) -> np.ndarray:
    """Compute the next numbers of minstd_rand0, doubling their count: x_{k+n} = 16807^n x_k. -> [length] uint64"""
    x = np.array([_MULTIPLIER * (seed % _MODULUS or 1) % _MODULUS], np.uint64)
    jump = _MULTIPLIER
    while len(x) < length:
        x = np.concatenate([x, x * np.uint64(jump) % np.uint64(_MODULUS)])
        jump = jump * jump % _MODULUS
    return x[:length]


def mix(value: int, salt: int) -> int:
    """Apply the last two rounds of splitmix64 to value + salt."""
    z = (value + salt) & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def seed_of(normals: np.ndarray) -> int:
    """Make the tree's seed from the bits of the first two float32 normals of the sampler's generator."""
    return int(np.asarray(normals, "<f4").view("<u8")[0])


def bridge_noise(x: np.ndarray, sigmas: np.ndarray, seed: int) -> StepNoise:
    """Return a noise source: increments of W, scaled to unit variance. W is refined by halving the range of sigma.

        W(mid) = (W(a) + W(c)) / 2 + sqrt((c - mid) (mid - a) / (c - a)) n

    After 24 halvings W is interpolated linearly. The n of a node comes from a separate engine with the seed
    mix(parent's seed, 1 or 2), so the path does not depend on the steps. Tensors are float32, times float64.

    x:      latents; they give the shape
    sigmas: the motion runs from their smallest above 0 to their largest
    seed:   from seed_of
    Source: stable-diffusion.cpp src/runtime/denoiser.hpp, BrownianTreeNoiseSampler, sample_dpmpp_2m_sde_bt.
    """
    positive = np.asarray(sigmas, np.float32)
    low, high = float(positive[positive > 0].min()), float(positive.max())
    top = libstdcxx_normals(mix(seed, 0xBF58476D1CE4E5B9), x.shape) * np.sqrt(np.float32(high - low))

    @functools.cache
    def w(t: float) -> np.ndarray:
        a, c, w_a, w_c = low, high, np.zeros(x.shape, np.float32), top
        node = mix(seed, 0x9E3779B97F4A7C15)
        for _ in range(_DEPTH):
            if c - a < 1e-9:
                break
            mid = 0.5 * (a + c)
            spread = np.float32(math.sqrt((c - mid) * (mid - a) / (c - a)))
            w_mid = np.float32(0.5) * (w_a + w_c) + spread * libstdcxx_normals(node, x.shape)
            if t == mid:
                return w_mid
            if t < mid:
                c, w_c, node = mid, w_mid, mix(node, 1)
            else:
                a, w_a, node = mid, w_mid, mix(node, 2)
        share = np.float32((t - a) / (c - a) if c > a else 0.5)
        return (1 - share) * w_a + share * w_c

    def noise(sigma: float, sigma_next: float) -> np.ndarray:
        a, b = (min(max(float(np.float32(s)), low), high) for s in sorted((sigma, sigma_next)))
        span = max(abs(float(np.float32(sigma_next)) - float(np.float32(sigma))), 1e-12)
        return (w(b) - w(a)) * np.float32(1 / np.sqrt(np.float32(span)))

    return noise
