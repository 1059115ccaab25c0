"""The arguments of a sampler besides the model: the noise source and the callback; and its steps and errors."""

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

# (sigma, sigma_next) -> noise for this step: standard normals of the latents' shape.
StepNoise = Callable[[float, float], np.ndarray]


class Callback(Protocol):
    def __call__(self, i: int, sigma: float, x: np.ndarray, denoised: np.ndarray) -> None:
        """Observe step i at noise level sigma. x: the model's input; denoised: its output"""
        ...


def intervals(sigmas: np.ndarray) -> Iterator[tuple[int, float, float]]:
    """Yield i, sigma, sigma_next of each step. sigmas: [n + 1]"""
    levels = sigmas.tolist()
    return zip(range(len(levels) - 1), levels, levels[1:], strict=False)


def no_noise(sigma: float, sigma_next: float) -> np.ndarray:
    """Raise an error: the noise source of samplers that should not draw noise."""
    raise ValueError(f"a deterministic sampler asked for noise between sigma {sigma} and {sigma_next}")


def no_callback(i: int, sigma: float, x: np.ndarray, denoised: np.ndarray) -> None:
    """Do nothing."""


class StepsError(ValueError):
    """A sampler cannot run on these sigmas."""
