"""Latents that add up lazily: a sampler reads as plain arithmetic, and each of its steps is one pass over memory.

Inside a `sampler` the latents, the model's answers and the noise are Latents: `x + d * dt` collects arrays and
weights and computes nothing. The sum is computed once, where someone must see the array: the model, the callback,
the caller. The same text runs on arrays too (`euler.__wrapped__`), one NumPy pass an operation, with equal results
up to rounding.
"""

import functools
from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.step import no_noise

# A weight is 1 if it is 1 up to the rounding of a division and a product.
_ROUNDING = 2.0**-52

Sampler = TypeVar("Sampler", bound=Callable[..., np.ndarray])
Sum = TypeVar("Sum", bound="np.ndarray | Latents")


class Latents:
    """A weighted sum of arrays of one shape and dtype. An array may occur more than once."""

    __slots__ = ("arrays", "weights")
    __array_ufunc__ = None  # NumPy's scalars leave their products to Latents

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
        """Compute the sum, reading each array once, in the order of first terms; then hold the result alone."""
        arrays = {id(array): array for array in self.arrays}
        weights = dict.fromkeys(arrays, 0.0)
        for w, array in zip(self.weights, self.arrays, strict=True):
            total = weights[id(array)] + w
            # What is left of weights that cancel is their rounding.
            weights[id(array)] = 0.0 if abs(total) <= _ROUNDING * abs(w) else total
        y = self.arrays[0]
        if len(arrays) > 1 or not abs(weights[id(y)] - 1) <= _ROUNDING:
            y = combine(list(weights.values()), list(arrays.values()))
            self.weights, self.arrays = [1.0], [y]
        return y


def sampler(text: Sampler) -> Sampler:
    """Run a sampler's text on Latents; its caller, model, noise and callback see arrays.

    text: (model, x, sigmas, noise, callback, ...) -> latents
    Computes in the dtype of x: answers and noise of another dtype are converted. The model and the noise must give
    a new array each time, since those of earlier steps are read again. A text may call another sampler.
    """

    @functools.wraps(text)
    def sampled(model, x, sigmas, noise=no_noise, callback=None, *args, **options):
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

        listen = None
        if callback:
            listen = lambda i, sigma, x, denoised: callback(i, sigma, x.array(), denoised.array())
        return array_of(text(answer, Latents.of(x), sigmas, draw, listen, *args, **options))

    return cast(Sampler, sampled)


def array_of(x: "np.ndarray | Latents") -> np.ndarray:
    """The numbers themselves, computed now: for what is no sum."""
    return x.array() if isinstance(x, Latents) else x


def settle(x: Sum) -> Sum:
    """x, computed now: for latents that a text goes on from without showing them to the model."""
    return cast(Sum, Latents.of(x.array())) if isinstance(x, Latents) else x


def scaled(x: Sum, scale: float) -> Sum:
    """scale x, computed now; x becomes that array / scale. For a solver in coordinates of its own."""
    y = x * scale
    if isinstance(x, Latents) and isinstance(y, Latents):
        array = y.array()
        x.weights, x.arrays = [1 / scale], [array]
    return cast(Sum, y)
