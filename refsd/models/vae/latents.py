"""The scale between AutoencoderKL's latents and a denoiser's, of each family that was released with one."""

from typing import NamedTuple


class LatentScale(NamedTuple):
    """Scale between an autoencoder's latents and the denoiser's: diffusers' scaling_factor and shift_factor."""

    factor: float
    shift: float
    source: str

    def to_denoiser(self, z):
        """Convert the encoder's output to the denoiser's latent: (z - shift) * factor."""
        return (z - self.shift) * self.factor

    def to_vae(self, x):
        """Convert the sampled latent to the decoder's input: x / factor + shift."""
        return x / self.factor + self.shift


_FLUX = LatentScale(0.3611, 0.1159, "black-forest-labs/flux, util.py, AutoEncoderParams")

# Family -> scale, in order of release.
LATENT_SCALES = {
    "sd1": LatentScale(0.18215, 0.0, "CompVis/stable-diffusion, v1-inference.yaml, scale_factor"),
    "sd2": LatentScale(0.18215, 0.0, "Stability-AI/stablediffusion, v2-inference.yaml, scale_factor"),
    "sdxl": LatentScale(0.13025, 0.0, "Stability-AI/generative-models, sd_xl_base.yaml, scale_factor"),
    "sd3": LatentScale(1.5305, 0.0609, "Stability-AI/sd3-ref, sd3_impls.py, SD3LatentFormat"),
    "flux": _FLUX,
    "lumina2": _FLUX,
    "chroma": _FLUX,
    "zimage": _FLUX,
}
