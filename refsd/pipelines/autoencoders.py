"""Between pictures and the latents that a denoiser sees: AutoencoderKL, FLUX.2's, a tiny one, or none at all."""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.families import LatentScale
from refsd.models.vae_flux2 import pack, unpack
from refsd.models.vae_tiling import Tiling
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.pipelines.part import Part, flag_of, open_part
from refsd.pipelines.tiles import decode_as_asked
from refsd.seams import Seams
from refsd.weights import Checkpoint

# Raw normals of a shape, for what is drawn from an encoder's posterior.
Draw = Callable[[tuple[int, ...]], np.ndarray]

# In this order: a tiny one is there because somebody asked for it.
KINDS = "tae", "flux2-vae", "vae"


class Autoencoder(NamedTuple):
    """
    encoder, decoder: None where pixels are the latents, as Radiance's
    pixels:   of a side, for each of the latent's
    scale:    what is done to AutoencoderKL's latents; None: nothing
    packed:   whether 2x2 squares are channels to the denoiser, and the autoencoder's latents are not packed
    """

    encoder: Part | None
    decoder: Part | None
    pixels: int
    scale: LatentScale | None = None
    packed: bool = False

    @property
    def tiny(self) -> bool:
        return self.decoder is not None and self.decoder.name == "tae-decoder"

    def decode(self, x: np.ndarray, tiling: Tiling | None = None, seams: Seams | None = None) -> np.ndarray:
        """x: [1, C, H, W], the denoiser's -> picture [1, 3, pixels H, pixels W], about -1..1, not clipped"""
        if self.decoder is None:
            return x
        decoder = self.decoder
        z = x if self.scale is None else self.scale.to_vae(x)
        z = unpack(z) if self.packed else z

        def run(z: np.ndarray) -> np.ndarray:
            return decoder({"z": z}, "latent")["out"]

        factor = self.pixels // 2 if self.packed else self.pixels
        picture = decode_as_asked(run, decoder.module, z, factor, tiling, seams or Seams())
        return picture * 2 - 1 if self.tiny else picture

    def encode(self, picture: np.ndarray, draw: Draw | None = None, scaled: bool = True) -> np.ndarray:
        """picture: [1, 3, H, W], -1..1 -> [1, C, H / pixels, W / pixels], as the denoiser sees latents

            z = mean + exp(clip(logvar, -30, 20) / 2) * normal

        draw:   None: the mean; FLUX.2's and the tiny ones have no more
        scaled: pix2pix is shown latents that are not

        Source: stable-diffusion.cpp gaussian_latent_sample; diffusers DiagonalGaussianDistribution.
        """
        if self.encoder is None:
            return picture
        said = self.encoder({"x": (picture + 1) / 2 if self.tiny else picture}, "picture")
        z = said["mean"].astype(self.encoder.dtype)
        if draw is not None and "logvar" in said:
            deviation = np.exp(np.clip(said["logvar"].astype(z.dtype), -30, 20) / 2)
            z = z + deviation * draw(z.shape).astype(z.dtype)
        z = pack(z) if self.packed else z
        return self.scale.to_denoiser(z) if self.scale is not None and scaled else z


PIXELS = Autoencoder(None, None, 1)


def open_autoencoder(checkpoint: Checkpoint, arithmetic: Arithmetic, channels: int) -> Autoencoder:
    """channels: of the denoiser's latents. Raises BadInput where the autoencoder's are others."""
    kind = next(kind for kind in KINDS if kind in checkpoint.components)
    encoder, decoder = (open_part(checkpoint, f"{kind}-{half}", arithmetic) for half in ("encoder", "decoder"))
    own = decoder.fits["C" if kind == "flux2-vae" else "Z"].n
    packed = kind == "tae" and channels == 4 * own
    if channels != own and not packed:
        raise BadInput(
            f"{decoder.path}: an autoencoder of {own} channels, and the denoiser's latents have {channels}: "
            f"give this model's own with {flag_of(kind)}"
        )
    config = checkpoint.components[kind].config
    scale = None
    if kind == "vae":
        scale = LatentScale(config["scaling_factor"], config["shift_factor"], "config")
    return Autoencoder(encoder, decoder, _pixels(kind, decoder) * (2 if packed else 1), scale, packed)


def _pixels(kind: str, decoder: Part) -> int:
    m = decoder.module
    if kind == "tae":
        # ExtraChannels each doubling stands a convolution without bias.
        places = [name for name in m.weights if re.fullmatch(r"decoder\.\d+\.weight", name)]
        return 2 ** sum(name.replace("weight", "bias") not in m.weights for name in places)
    levels = m.count("decoder.up")
    return 2**levels if kind == "flux2-vae" else 2 ** (levels - 1)
