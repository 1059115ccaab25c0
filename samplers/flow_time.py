"""Convert a rectified flow to x = data + sigma noise, so that solvers for that form run on it unchanged."""

import functools
import inspect
from collections.abc import Callable

import numpy as np

from refsd.samplers.latents import sampler, scaled
from refsd.samplers.step import no_callback, no_noise


def exploding(sigma):
    """Convert a flow's sigma to noise over signal: sigma / (1 - sigma)."""
    return sigma / (1 - sigma)


def share(sigma):
    """Convert noise over signal back to a flow's sigma: sigma / (1 + sigma)."""
    return sigma / (1 + sigma)


def flow_signal(sigma: float) -> float:
    """Compute the flow's signal weight from noise over signal sigma: 1 - share(sigma)."""
    return 1 / (1 + sigma)


# Replaces a first sigma of 1 in solvers in log SNR, which is infinite there because no signal is left.
# Source: ComfyUI k_diffusion/sampling.py, offset_first_sigma_for_snr.
OPENING = 1 - 1e-4


def opened(sigmas: np.ndarray, opening: float = OPENING) -> np.ndarray:
    """Replace a first sigma of 1 by `opening`."""
    return np.append(opening, sigmas[1:]) if len(sigmas) > 1 and sigmas[0] >= 1 else sigmas


def in_flow_time(solver: Callable[..., np.ndarray], opening: float = OPENING) -> Callable[..., np.ndarray]:
    """Convert a solver in -ln sigma to one for a flow, in half the log SNR ln((1 - sigma) / sigma).

        y = x / (1 - sigma),  sigma' = sigma / (1 - sigma),  denoised is the same

    The solver computes with y and sigma'. The model, `noise` and `callback` get x and sigma of the flow. Options of
    the solver, such as sa_solver's tau, get sigma'.

    opening: replaces a first sigma of 1, where no signal is left; x is not changed. The solver takes another as an
             option of this name: for a flow shifted by s ComfyUI uses shift_snr(OPENING, s)
    ComfyUI's formulas with alpha = 1 - sigma are equivalent (dpmpp_sde, dpmpp_2m_sde, dpmpp_3m_sde, er_sde, seeds,
    SA-Solver), and so are diffusers' schedulers with use_flow_sigmas.
    Source: ComfyUI k_diffusion/sampling.py, sigma_to_half_log_snr, offset_first_sigma_for_snr.
    """

    @sampler
    @functools.wraps(solver)
    def sampled(model, x, sigmas, noise=no_noise, callback=no_callback, opening=opening, **options):
        sigmas = opened(np.asarray(sigmas, np.float64), opening)
        asked = lambda y, sigma: model(scaled(y, flow_signal(sigma)), share(sigma))
        drawn = lambda sigma, sigma_next: noise(share(sigma), share(sigma_next))
        heard = lambda i, sigma, y, denoised: callback(i, share(sigma), y * flow_signal(sigma), denoised)
        y = solver(asked, x / (1 - float(sigmas[0])), exploding(sigmas), drawn, heard, **options)
        return y * (1 - float(sigmas[-1]))

    own = inspect.signature(solver)
    option = inspect.Parameter("opening", inspect.Parameter.KEYWORD_ONLY, default=opening)
    sampled.__signature__ = own.replace(parameters=[*own.parameters.values(), option])  # type: ignore[attr-defined]
    return sampled
