"""The components of AutoencoderKL."""

import math

from refsd.models.vae import decode, encode
from refsd.models.vae.latents import LATENT_SCALES, LatentScale
from refsd.module import Module
from refsd.networks.component import VALUE, Argument, Component
from refsd.networks.fits import Fit, at_least, divisor_of, exactly
from refsd.numerics.errors import BadInput

OWN = "own"  # the autoencoder's latents, before the family's scale and shift


def _scale(latents: str) -> LatentScale:
    if latents not in LATENT_SCALES:
        raise BadInput(f"param latents is {latents[:40]!r}; expected {OWN} or {', '.join(LATENT_SCALES)}")
    return LATENT_SCALES[latents]


def _encode(m: Module, x, num_groups, latents):
    mean, logvar = encode(m, x, num_groups)
    if latents == OWN:
        return mean, logvar
    scale = _scale(latents)
    return scale.to_denoiser(mean), logvar + 2 * math.log(scale.factor)


def _decode(m: Module, z, num_groups, latents):
    return decode(m, z if latents == OWN else _scale(latents).to_vae(z), num_groups)


def level_gcd(m: Module, half: str) -> int:
    """Return the greatest common divisor of all norms' channels in one half: encoder.down or decoder.up."""
    norms = [m[half][i].shape(f"block.0.norm{n}.weight")[0] for i in range(m.count(half)) for n in (1, 2)]
    return math.gcd(*norms)


def _encoder_fits(m: Module) -> dict[str, Fit]:
    C = m.shape("encoder.conv_in.weight")[1]
    fits = {"C": exactly(C), "num_groups": divisor_of(level_gcd(m, "encoder.down"))}
    fits["H"] = fits["W"] = at_least(2 ** (m.count("encoder.down") - 1))
    return fits


def _decoder_fits(m: Module) -> dict[str, Fit]:
    return {
        "Z": exactly(m.shape("decoder.conv_in.weight")[1]),
        "num_groups": divisor_of(level_gcd(m, "decoder.up")),
    }


COMPONENTS = {
    "vae-encoder": Component(
        "vae",
        _encode,
        {"x": Argument("N C H W", VALUE, "picture, -1..1")},
        {"mean": "N Z H/8 W/8", "logvar": "N Z H/8 W/8"},
        {"num_groups": 32, "latents": OWN},
        _encoder_fits,
    ),
    "vae-decoder": Component(
        "vae",
        _decode,
        {
            "z": Argument(
                "N Z H W", VALUE, "latent, not as the denoiser has it: with --param latents=sd1, ... it is"
            )
        },
        {"out": "N C 8H 8W"},
        {"num_groups": 32, "latents": OWN},
        _decoder_fits,
    ),
}
