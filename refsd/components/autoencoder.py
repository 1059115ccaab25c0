"""AutoencoderKL, and the tiny autoencoders."""

from refsd.components.component import (
    VALUE,
    Argument,
    Component,
    Fit,
    at_least,
    divisor_of,
    exactly,
)
from refsd.models import taesd
from refsd.models.vae import decode, encode
from refsd.module import Module


def _encoder_fits(m: Module) -> dict[str, Fit]:
    channels, C, _, _ = m.shape("encoder.conv_in.weight")
    fits = {"C": exactly(C), "num_groups": divisor_of(channels)}
    fits["H"] = fits["W"] = at_least(2 ** (m.count("encoder.down") - 1))
    return fits


def _decoder_fits(m: Module) -> dict[str, Fit]:
    channels = m.shape("decoder.norm_out.weight")[0]
    return {"Z": exactly(m.shape("decoder.conv_in.weight")[1]), "num_groups": divisor_of(channels)}


COMPONENTS = {
    "vae-encoder": Component(
        "vae",
        encode,
        {"x": Argument("N C H W", VALUE, "picture, -1..1")},
        {"mean": "N Z H/8 W/8", "logvar": "N Z H/8 W/8"},
        {"num_groups": 32},
        _encoder_fits,
    ),
    "vae-decoder": Component(
        "vae",
        decode,
        {"z": Argument("N Z H W", VALUE, "latent, unscaled: SD 1.x divides by 0.18215")},
        {"out": "N C 8H 8W"},
        {"num_groups": 32},
        _decoder_fits,
    ),
    "tae-encoder": Component(
        "tae",
        lambda m, x: taesd.encode(m["encoder"], x),
        {"x": Argument("N C H W", VALUE, "picture, 0..1")},
        {"mean": "N Z H/8 W/8"},
        {},
        lambda m: {"C": exactly(m.shape("encoder.0.weight")[1])},
    ),
    "tae-decoder": Component(
        "tae",
        lambda m, z: taesd.decode(m["decoder"], z),
        {"z": Argument("N Z H W", VALUE, "latent, as the denoiser has it")},
        {"out": "N C 8H 8W"},
        {},
        lambda m: {"Z": exactly(m.shape("decoder.1.weight")[1])},
    ),
}
