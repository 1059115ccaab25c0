"""Lazy sums of latents: samplers read as plain arithmetic, yet each step makes only one pass over memory.

Inside a `sampler` the latents, the model's outputs and the noise are Latents: `x + d * dt` collects arrays and
weights and computes nothing. The sum is computed once, when the model, the callback or the caller needs the array.
The same code also runs on arrays (`euler.__wrapped__`), with one NumPy pass for each operation and equal results up
to rounding.
"""

import functools
from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.step import no_callback, no_noise

# A weight counts as 1 if it differs from 1 by at most the rounding of a division and a product.
_ROUNDING = 2.0**-52

Sampler = TypeVar("Sampler", bound=Callable[..., np.ndarray])
Sum = TypeVar("Sum", bound="np.ndarray | Latents")


class Latents:
    """A weighted sum of arrays of one shape and dtype. An array may occur more than once."""

    __slots__ = ("arrays", "weights")
    __array_ufunc__ = None  # makes NumPy scalars leave multiplication to Latents

    def __init__(self, weights: list[float], arrays: list[np.ndarray]):
        self.weights, self.arrays = weights, arrays

    @classmethod
    def of(cls, array: np.ndarray) -> "Latents":
        return cls([1.0], [array])

    def __add__(self, other: "Latents | np.ndarray") -> "Latents":
        if not isinstance(other, Latents):
            return Latents([*self.weights, 1.0], [*self.arrays, other])
        return Latents(self.weights + other.weights, self.arrays + other.arrays)

    def __sub__(self, other: "Latents") -> "Latents":
        return Latents(self.weights + [-w for w in other.weights], self.arrays + other.arrays)

    def __mul__(self, factor: float) -> "Latents":
        return Latents([w * factor for w in self.weights], self.arrays)

    __rmul__ = __mul__

    def __truediv__(self, divisor: float) -> "Latents":
        return Latents([w / divisor for w in self.weights], self.arrays)

    def array(self) -> np.ndarray:
        """Compute the sum, reading each array once, in the order of first occurrence; keep only the result."""
        arrays = {id(array): array for array in self.arrays}
        weights = dict.fromkeys(arrays, 0.0)
        for w, array in zip(self.weights, self.arrays, strict=True):
            total = weights[id(array)] + w
            # Weights that cancel leave only a rounding error, which counts as 0.
            weights[id(array)] = 0.0 if abs(total) <= _ROUNDING * abs(w) else total
        y = self.arrays[0]
        if len(arrays) > 1 or not abs(weights[id(y)] - 1) <= _ROUNDING:
            y = combine(list(weights.values()), list(arrays.values()))
            self.weights, self.arrays = [1.0], [y]
        return y


def sampler(text: Sampler) -> Sampler:
    """Decorate a sampler to run on Latents; its caller, model, noise source and callback get arrays.

    text: (model, x, sigmas, noise, callback, ...) -> latents. What every sampler's caller gives and gets:
        model:    a Denoiser; of CFG++ a GuidedDenoiser
        x:        latents at sigmas[0]
        sigmas:   [n + 1], falling
        noise:    a StepNoise
        callback: a Callback, or None
        -> latents at sigmas[-1], dtype of x

    Computes in the dtype of x; outputs and noise of another dtype are converted. The model and the noise source
    must return a new array each time, because earlier arrays are read again. A sampler may call another sampler.
    """

    @functools.wraps(text)
    def sampled(model, x, sigmas, noise=no_noise, callback=no_callback, *args, **options):
        if isinstance(x, Latents):
            return text(model, x, sigmas, noise, callback, *args, **options)
        dtype = x.dtype

        def answer(x: Latents, sigma: float):
            denoised = model(x.array(), sigma)
            if isinstance(denoised, tuple):
                return tuple(Latents.of(np.asarray(y, dtype)) for y in denoised)
            return Latents.of(np.asarray(denoised, dtype))

        def draw(sigma: float, sigma_next: float) -> Latents:
            return Latents.of(np.asarray(noise(sigma, sigma_next), dtype))

        def listen(i: int, sigma: float, x: Latents, denoised: Latents) -> None:
            callback(i, sigma, x.array(), denoised.array())

        heard = listen if callback not in (None, no_callback) else no_callback
        return array_of(text(answer, Latents.of(x), sigmas, draw, heard, *args, **options))

    return cast(Sampler, sampled)


def array_of(x: "np.ndarray | Latents") -> np.ndarray:
    """Compute x as an array now, for operations other than sums."""
    return x.array() if isinstance(x, Latents) else x


def settle(x: Sum) -> Sum:
    """Compute x now. For latents that a sampler continues from without passing them to the model."""
    return cast(Sum, Latents.of(x.array())) if isinstance(x, Latents) else x


def scaled(x: Sum, scale: float) -> Sum:
    """Compute scale x now, and express x as that array / scale. For solvers in scaled coordinates."""
    y = x * scale
    if isinstance(x, Latents) and isinstance(y, Latents):
        array = y.array()
        x.weights, x.arrays = [1 / scale], [array]
    return cast(Sum, y)
