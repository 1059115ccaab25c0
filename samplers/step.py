"""What a sampler is handed beside the model: where fresh noise comes from, and who listens."""

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

# Noise for the step from sigma to sigma_next: standard normals of the latents' shape.
StepNoise = Callable[[float, float], np.ndarray]


class Callback(Protocol):
    def __call__(self, i: int, sigma: float, x: np.ndarray, denoised: np.ndarray) -> None:
        """Step i, at noise level sigma: the latents x as the model saw them, and its answer."""
        ...


def intervals(sigmas: np.ndarray) -> Iterator[tuple[int, float, float]]:
    """i, sigma, sigma_next of each step. sigmas: [n + 1]"""
    levels = sigmas.tolist()
    return zip(range(len(levels) - 1), levels, levels[1:], strict=False)


def no_noise(sigma: float, sigma_next: float) -> np.ndarray:
    """For a sampler whose settings leave nothing to draw; raises if it draws all the same."""
    raise ValueError(f"a deterministic sampler asked for noise between sigma {sigma} and {sigma_next}")


class StepsError(ValueError):
    """A sampler cannot do with these sigmas."""
