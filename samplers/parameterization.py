"""Convert a network's prediction to what a sampler needs: the denoised latent.

denoised = c_skip x + c_out network(c_in x, t)
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.kernels.combine import combine
from refsd.samplers.levels import Levels

Denoiser = Callable[[np.ndarray, float], np.ndarray]
Network = Callable[[np.ndarray, float], np.ndarray]


class Prediction(NamedTuple):
    """What a network predicts.

    name:     name in engines and configs
    scalings: sigma -> c_skip, c_out, c_in
    """

    name: str
    scalings: Callable[[float], tuple[float, float, float]]


def _eps(sigma: float):
    return 1.0, -sigma, 1 / math.sqrt(sigma**2 + 1)


def _v(sigma: float):
    return 1 / (sigma**2 + 1), -sigma / math.sqrt(sigma**2 + 1), 1 / math.sqrt(sigma**2 + 1)


def _x0(sigma: float):
    return 0.0, 1.0, 1 / math.sqrt(sigma**2 + 1)


def edm(sigma_data: float) -> Prediction:
    """Make Karras et al.'s preconditioning for data with this standard deviation (Playground 2.5: 0.5).

    Source: Karras et al. 2022, table 1, column Ours.
    """

    def scalings(sigma: float):
        variance = sigma**2 + sigma_data**2
        root = math.sqrt(variance)
        return sigma_data**2 / variance, sigma * sigma_data / root, 1 / root

    return Prediction("edm", scalings)


# SD 1.x, SDXL. Source: Karras et al. 2022, table 1, column iDDPM + DDIM.
EPS = Prediction("eps", _eps)
# SD 2.x at 768. Source: Salimans & Ho 2022, section 4. EDM v (CosXL) has the same form with continuous levels.
V = Prediction("v", _v)
# Source: Ho et al. 2020, section 3.2; diffusers prediction_type "sample".
X0 = Prediction("x0", _x0)
# Rectified flow: the network predicts noise - data. Source: Esser et al. 2024, eq. 13.
FLOW = Prediction("flow", lambda sigma: (1.0, -sigma, 1.0))

PREDICTIONS: dict[str, Prediction] = {p.name: p for p in (EPS, V, X0, FLOW)}


def denoiser(network: Network, levels: Levels, prediction: Prediction = EPS) -> Denoiser:
    """Wrap a network as model(x, sigma) -> denoised.

    network: (scaled x, timestep) -> prediction, the shape of x
    levels:  convert a sigma to the network's timestep
    Computes in the dtype of x.
    """

    def denoised(x: np.ndarray, sigma: float) -> np.ndarray:
        c_skip, c_out, c_in = prediction.scalings(sigma)
        y = network(x * c_in if c_in != 1 else x, levels.to_t(sigma))
        return combine((c_out,), (y,)) if c_skip == 0 else combine((c_skip, c_out), (x, y))

    return denoised
