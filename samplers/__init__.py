"""Samplers: sigmas in, latents out. `model(x, sigma) -> denoised`; a file a solver."""

from collections.abc import Callable

import numpy as np

from refsd.samplers.euler import euler
from refsd.samplers.euler_ancestral import euler_ancestral

# Every sampler is called (model, x, sigmas, noise, callback).
SAMPLERS: dict[str, Callable[..., np.ndarray]] = {
    "euler": euler,
    "euler_a": euler_ancestral,
}
