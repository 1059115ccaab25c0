"""A rectified flow seen as data + sigma noise, so that a solver written for that runs on it unchanged."""

from collections.abc import Callable

import numpy as np

from refsd.samplers.levels import shift_snr
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


def in_flow_time(solver: Callable[..., np.ndarray], shift: float = 1.0) -> Callable[..., np.ndarray]:
    """A solver in -ln sigma as one in half the log SNR of a flow, ln((1 - sigma) / sigma).

        y = x / (1 - sigma),  sigma' = sigma / (1 - sigma),  denoised is the same

    The solver is given sigma', and `signal`: the 1 - sigma that its weights take up, so that no array is scaled.

    What ComfyUI writes with alpha = 1 - sigma is that: dpmpp_sde, dpmpp_2m_sde, dpmpp_3m_sde, er_sde, seeds and
    SA-Solver. A schedule that begins at 1, where nothing is left of the signal, begins at shift_snr(0.9999, shift);
    x is taken as it is. The model, `noise` and `callback` see x and sigma of the flow; options such as sa_solver's
    tau are the solver's own.
    Source: ComfyUI k_diffusion/sampling.py, sigma_to_half_log_snr, offset_first_sigma_for_snr.
    """

    def sampled(
        model: Denoiser,
        x: np.ndarray,
        sigmas: np.ndarray,
        noise: StepNoise = no_noise,
        callback: Callback | None = None,
        **options,
    ) -> np.ndarray:
        if len(sigmas) > 1 and sigmas[0] >= 1:
            sigmas = np.append(shift_snr(1 - 1e-4, shift), sigmas[1:])
        asked = lambda x, sigma: model(x, sigma / (1 + sigma))
        drawn = lambda sigma, sigma_next: noise(sigma / (1 + sigma), sigma_next / (1 + sigma_next))
        heard = (lambda i, sigma, x, denoised: callback(i, share(sigma), x, denoised)) if callback else None
        return solver(asked, x, exploding(np.asarray(sigmas)), drawn, heard, signal=flow_signal, **options)

    return sampled
