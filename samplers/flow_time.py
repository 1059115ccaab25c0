"""A rectified flow seen as data + sigma noise, so that a solver written for that runs on it unchanged."""

import functools
from collections.abc import Callable

import numpy as np

from refsd.samplers.latents import sampler, scaled
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, no_noise


def exploding(sigma):
    """Noise over signal: sigma / (1 - sigma)."""
    return sigma / (1 - sigma)


def share(sigma):
    """Back: sigma / (1 + sigma)."""
    return sigma / (1 + sigma)


def flow_signal(sigma: float) -> float:
    """1 less the flow's own sigma, from sigma / (1 - sigma)."""
    return 1 / (1 + sigma)


# Where a solver in log SNR begins instead of at 1, where nothing is left of the signal.
# Source: ComfyUI k_diffusion/sampling.py, offset_first_sigma_for_snr.
OPENING = 1 - 1e-4


def opened(sigmas: np.ndarray, opening: float = OPENING) -> np.ndarray:
    """A flow's sigmas, beginning at `opening` in place of 1."""
    return np.append(opening, sigmas[1:]) if len(sigmas) > 1 and sigmas[0] >= 1 else sigmas


def in_flow_time(solver: Callable[..., np.ndarray], opening: float = OPENING) -> Callable[..., np.ndarray]:
    """A solver in -ln sigma as one in half the log SNR of a flow, ln((1 - sigma) / sigma).

        y = x / (1 - sigma),  sigma' = sigma / (1 - sigma),  denoised is the same

    The solver is given y and sigma'. The model, `noise` and `callback` see x and sigma of the flow; options such as
    sa_solver's tau are the solver's own.

    opening: where a schedule from 1 begins, where nothing is left of the signal; x is taken as it is. Of a flow
             shifted by s ComfyUI has shift_snr(OPENING, s).
    What ComfyUI writes with alpha = 1 - sigma is that: dpmpp_sde, dpmpp_2m_sde, dpmpp_3m_sde, er_sde, seeds and
    SA-Solver; and diffusers' schedulers with use_flow_sigmas.
    Source: ComfyUI k_diffusion/sampling.py, sigma_to_half_log_snr, offset_first_sigma_for_snr.
    """

    @sampler
    @functools.wraps(solver)
    def sampled(
        model: Denoiser,
        x: np.ndarray,
        sigmas: np.ndarray,
        noise: StepNoise = no_noise,
        callback: Callback | None = None,
        **options,
    ) -> np.ndarray:
        sigmas = opened(np.asarray(sigmas, np.float64), opening)
        asked = lambda y, sigma: model(scaled(y, flow_signal(sigma)), share(sigma))
        drawn = lambda sigma, sigma_next: noise(share(sigma), share(sigma_next))
        heard = None
        if callback:
            heard = lambda i, sigma, y, denoised: callback(i, share(sigma), y * flow_signal(sigma), denoised)
        y = solver(asked, x / (1 - float(sigmas[0])), exploding(sigmas), drawn, heard, **options)
        return y * (1 - float(sigmas[-1]))

    return sampled
