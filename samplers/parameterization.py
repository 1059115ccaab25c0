"""What a network predicts, turned into what a sampler wants: the denoised latent."""

from collections.abc import Callable

import numpy as np

from refsd.samplers.schedules import sigma_to_t

Denoiser = Callable[[np.ndarray, float], np.ndarray]


def eps_denoiser(network: Callable[[np.ndarray, float], np.ndarray], levels: np.ndarray) -> Denoiser:
    """A network that predicts the noise, as model(x, sigma) -> denoised.

        denoised = x - sigma * network(x / sqrt(sigma^2 + 1), sigma_to_t(sigma))

    network: (x of unit variance, t in 0..T-1) -> noise, the shape of x
    levels:  [T], the noise levels it was trained on
    Computes in the dtype of x.
    Source: Karras et al. 2022, table 1, column iDDPM + DDIM (c_skip 1, c_out -sigma);
    k-diffusion external.py, DiscreteEpsDDPMDenoiser.
    """

    def denoised(x: np.ndarray, sigma: float) -> np.ndarray:
        c_in = 1.0 / float(np.sqrt(sigma**2 + 1.0))
        return x - sigma * network(x * c_in, sigma_to_t(sigma, levels))

    return denoised


def guide(cond: np.ndarray, uncond: np.ndarray, scale: float) -> np.ndarray:
    """Classifier-free guidance: uncond + scale * (cond - uncond).

    Linear, so that it may act on the noise (as stable-diffusion.cpp does) or on denoised alike.
    scale 1 is cond; the paper's w is scale - 1.
    Source: Ho & Salimans 2022, eq. 6.
    """
    return uncond + scale * (cond - uncond)
