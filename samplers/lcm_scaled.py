import numpy as np

from refsd.samplers.latents import array_of, sampler
from refsd.samplers.parameterization import Denoiser
from refsd.samplers.step import Callback, StepNoise, intervals


@sampler
def lcm_scaled(
    model: Denoiser,
    x: np.ndarray,
    sigmas: np.ndarray,
    noise: StepNoise,
    callback: Callback | None = None,
    scales: tuple[float, float] = (1.0, 1.0),
    clip: float = 0.0,
    ddof: int = 1,
) -> np.ndarray:
    """Sample with lcm, but clip the noise and scale it from scales[0] in the first step to scales[1] in the last.

        x <- denoised + sigma_next s_i clip(n),  s_i = s_0 + (s_1 - s_0) i / (steps - 1)

    clip: limit in standard deviations of the drawn noise of the whole batch; 0: no clipping
    ddof: ddof of that standard deviation: 1 in ComfyUI, 0 in stable-diffusion.cpp
    Other arguments: as in lcm.
    Source: ComfyUI sample_lcm; stable-diffusion.cpp sample_lcm with extra_sample_args.
    """
    steps = len(sigmas) - 1
    for i, sigma, sigma_next in intervals(sigmas):
        denoised = model(x, sigma)
        if callback:
            callback(i, sigma, x, denoised)
        x = denoised
        if sigma_next > 0:
            n = array_of(noise(sigma, sigma_next))
            if clip > 0:
                bound = float(clip * n.std(ddof=ddof, dtype=np.float64))
                n = np.clip(n, -bound, bound)
            scale = scales[0] + (scales[1] - scales[0]) * (i / (steps - 1) if steps > 1 else 0.0)
            x = x + sigma_next * scale * n
    return x
