"""Encode pictures to the denoiser's latents and decode them, by a whole autoencoder, a tiny one, or none."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.circular import CircularAxes
from refsd.models.catalogue import AUTOENCODERS
from refsd.models.vae.latents import LatentScale
from refsd.models.vae.tiling import Tiling, tiled_sdcpp
from refsd.models.vae_flux2 import pack, unpack
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.pipelines.loaded_component import LoadedComponent, file_flag, load_component
from refsd.weights import Checkpoint

# Shape -> standard normals, for sampling from the encoder's posterior.
Draw = Callable[[tuple[int, ...]], np.ndarray]

# The first that the checkpoint has is used; it has a tiny one only if the user gave it.
KINDS = "tae", *AUTOENCODERS


class Autoencoder(NamedTuple):
    """An encoder and a decoder, and how their latents relate to the denoiser's.

    encoder, decoder: None if latents are pixels, as in Chroma-Radiance
    pixels:   pixels per latent position, along a side
    scale:    scale between AutoencoderKL's latents and the denoiser's; None: they are the same
    packed:   True if the denoiser takes 2x2 squares of the autoencoder's latents as channels
    frames:   True if the autoencoder takes videos: a picture is one frame
    alpha:    True if its pictures have a fourth channel, alpha
    """

    encoder: LoadedComponent | None
    decoder: LoadedComponent | None
    pixels: int
    scale: LatentScale | None = None
    packed: bool = False
    frames: bool = False
    alpha: bool = False

    @property
    def tiny(self) -> bool:
        return self.decoder is not None and self.decoder.name == "tae-decoder"

    def with_params(self, params: Mapping[str, Any]) -> "Autoencoder":
        """Return the autoencoder with params in place of those of its config; a tiny one has none."""
        if self.encoder is None or self.decoder is None or self.tiny:
            return self
        encoder, decoder = (
            half._replace(params={**half.params, **params}) for half in (self.encoder, self.decoder)
        )
        return self._replace(encoder=encoder, decoder=decoder)

    def decode(
        self, x: np.ndarray, tiling: Tiling | None = None, circular: CircularAxes | None = None
    ) -> np.ndarray:
        """Decode latents, optionally in tiles as stable-diffusion.cpp does.

        x: [1, C, H, W], in the denoiser's scale
        -> [1, 3 or 4, pixels H, pixels W], about -1..1, not clipped
        """
        if self.decoder is None:
            return x
        decoder = self.decoder
        z = x if self.scale is None else self.scale.to_vae(x)
        z = unpack(z) if self.packed else z

        def run(z: np.ndarray) -> np.ndarray:
            if self.frames:
                return decoder({"z": z[:, :, None]}, "latent")["out"][:, :, 0]
            return decoder({"z": z}, "latent")["out"]

        circular = circular or CircularAxes()
        if tiling is None:
            decoder.module.circular = circular
            picture = run(z)
        else:
            factor = self.pixels // 2 if self.packed else self.pixels
            h, w = z.shape[2:]
            # On an axis of several tiles the picture wraps between tiles, on an axis of one tile inside the tile.
            decoder.module.circular, wraps = tiling.circular(circular, h, w)
            picture = tiled_sdcpp(run, z, tiling.sizes(h, w), tiling.target(), up=factor, wraps=wraps)
        return picture * 2 - 1 if self.tiny else picture

    def encode(self, picture: np.ndarray, draw: Draw | None = None, scaled: bool = True) -> np.ndarray:
        """Encode a picture, [1, 3, H, W], -1..1 -> [1, C, H / pixels, W / pixels], in the denoiser's scale.

        An autoencoder with alpha takes the picture as opaque.

            z = mean + exp(clip(logvar, -30, 20) / 2) * normal

        draw:   source of `normal`; None: return the mean. FLUX.2's and tiny encoders have no logvar
        scaled: False to skip the scale, as for pix2pix's extra channels

        Source: stable-diffusion.cpp gaussian_latent_sample; diffusers DiagonalGaussianDistribution.
        """
        if self.encoder is None:
            return picture
        x = (picture + 1) / 2 if self.tiny else picture
        if self.alpha and x.shape[1] == 3:
            x = np.concatenate([x, np.ones_like(x[:, :1])], axis=1)
        posterior = self.encoder({"x": x[:, :, None] if self.frames else x}, "picture")
        if self.frames:
            posterior = {name: y[:, :, 0] for name, y in posterior.items()}
        z = posterior["mean"].astype(self.encoder.dtype)
        if draw is not None and "logvar" in posterior:
            deviation = np.exp(np.clip(posterior["logvar"].astype(z.dtype), -30, 20) / 2)
            z = z + deviation * draw(z.shape).astype(z.dtype)
        z = pack(z) if self.packed else z
        return self.scale.to_denoiser(z) if self.scale is not None and scaled else z


PIXELS = Autoencoder(None, None, 1)


def open_autoencoder(checkpoint: Checkpoint, arithmetic: Arithmetic, channels: int) -> Autoencoder:
    """Open the checkpoint's autoencoder.

    channels: latent channels of the denoiser
    Raises BadInput if the autoencoder's latents have another number of channels.
    """
    kind = next(kind for kind in KINDS if kind in checkpoint.components)
    encoder, decoder = (load_component(checkpoint, f"{kind}-{half}", arithmetic) for half in ("encoder", "decoder"))
    own = decoder.fits["C" if kind == "flux2-vae" else "Z"].n
    packed = kind == "tae" and channels == 4 * own
    if channels != own and not packed:
        raise BadInput(
            f"{decoder.path}: an autoencoder of {own} channels, and the denoiser's latents have {channels}: "
            f"give this model's own with {file_flag(kind)}"
        )
    config = checkpoint.components[kind].config
    scale = None
    if kind == "vae":
        scale = LatentScale(config["scaling_factor"], config["shift_factor"], "config")
    pixels = _pixels(kind, decoder) * (2 if packed else 1)
    alpha = encoder.fits["C"].n == 4
    return Autoencoder(
        encoder, decoder, pixels, scale, packed, frames=kind in ("wan-vae", "wan22-vae"), alpha=alpha
    )


def _pixels(kind: str, decoder: LoadedComponent) -> int:
    m = decoder.module
    if kind == "tae":
        # A convolution without bias follows each 2x upsampling.
        convolutions = [name for name in m.weights if re.fullmatch(r"decoder\.\d+\.weight", name)]
        return 2 ** sum(name.replace("weight", "bias") not in m.weights for name in convolutions)
    if kind in ("wan-vae", "wan22-vae", "qwen-image21-vae"):
        samplings = sum(name.endswith(".resample.1.weight") for name in m.weights if name.startswith("decoder."))
        return 2 ** (samplings + (kind == "wan22-vae"))
    levels = m.count("decoder.up")
    return 2**levels if kind == "flux2-vae" else 2 ** (levels - 1)
