import math

import numpy as np

from refsd.samplers.latents import sampler
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals


@sampler
def scm(
    model: Denoiser,
    x: np.ndarray,
    angles: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    sigma_data: float = 0.5,
) -> np.ndarray:
    """Sample TrigFlow, whose noise level is an angle t: x <- cos(t_next) denoised + sin(t_next) sigma_data n.

    model:  (x, t) -> denoised; for a TrigFlow network F: cos(t) x - sin(t) F(x / sigma_data, t) sigma_data
    x:      latents at angles[0], sigma_data n
    angles: [n + 1], falling; the first near pi / 2, where no signal is left; sigma = tan(t) sigma_data
    noise:  called once a step; in the last step it has weight 0
    -> latents at angles[-1], dtype of x
    Source: Lu & Song 2025 (sCM), algorithm 2 of its appendix; diffusers SCMScheduler (SANA-Sprint).
    """
    for i, t, t_next in intervals(angles):
        denoised = model(x, t)
        if callback:
            callback(i, t, x, denoised)
        x = math.cos(t_next) * denoised + math.sin(t_next) * sigma_data * noise(t, t_next)
    return x


def scm_angles(n: int, first: float = 1.57080, second: float | None = 1.3) -> np.ndarray:
    """Return the angles first, second, 0 for two steps; otherwise, or if second is None, evenly from first to 0.

    -> [n + 1]

    Source: diffusers SCMScheduler.set_timesteps; 1.57080 is a little over pi / 2.
    """
    if n == 2 and second is not None:
        return np.array([first, second, 0.0])
    return np.linspace(first, 0.0, n + 1)
