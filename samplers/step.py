"""What a sampler tells whoever listens, at each step, before it moves x."""

from typing import Protocol

import numpy as np


class Callback(Protocol):
    def __call__(self, i: int, sigma: float, x: np.ndarray, denoised: np.ndarray) -> None:
        """Step i, at noise level sigma: the latents x as the model saw them, and its answer."""
        ...
