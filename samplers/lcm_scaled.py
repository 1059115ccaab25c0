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
    """lcm whose noise is clipped, and weighs `scales` in the first and last step, a line between them.

        x <- denoised + sigma_next s_i clip(n),  s_i = s_0 + (s_1 - s_0) i / (steps - 1)

    clip: at so many standard deviations of the noise that was drawn, the whole batch's; 0: not
    ddof: of that standard deviation: ComfyUI's is 1, stable-diffusion.cpp's 0
    Other arguments: lcm's.
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
