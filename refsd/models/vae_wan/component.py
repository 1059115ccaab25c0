"""The components of the autoencoders of Wan 2.1, Qwen-Image and Wan 2.2."""

import math

from refsd.models import vae_wan
from refsd.models.vae_wan import factors
from refsd.models.vae_wan.latents import LATENTS_MEAN, LATENTS_STD, WAN22_LATENTS_MEAN, WAN22_LATENTS_STD
from refsd.module import Module
from refsd.networks.component import VALUE, Argument, Component
from refsd.networks.fits import Fit, at_least, exactly, multiple_of, numbers
from refsd.numerics.errors import BadInput

_CONV = "0.residual.2.weight"
_STATISTICS = {"latents_mean": list(LATENTS_MEAN), "latents_std": list(LATENTS_STD)}
_WAN22_STATISTICS = {"latents_mean": list(WAN22_LATENTS_MEAN), "latents_std": list(WAN22_LATENTS_STD)}


def statistics_fits(Z: int) -> dict[str, Fit]:
    return {"latents_mean": numbers(Z), "latents_std": numbers(Z, above_zero=True)}


def _encoder_fits(m: Module) -> dict[str, Fit]:
    layers = m["encoder.downsamples"]
    side = at_least(2 ** sum("resample" in layers[i] for i in range(layers.count())))
    C, Z = m.shape("encoder.conv1.weight")[1], m.shape("decoder.conv1.weight")[1]
    return {"C": exactly(C), "H": side, "W": side, **statistics_fits(Z)}


def _decoder_fits(m: Module) -> dict[str, Fit]:
    Z = m.shape("decoder.conv1.weight")[1]
    return {"Z": exactly(Z), **statistics_fits(Z)}


def _wan22_encoder_fits(m: Module) -> dict[str, Fit]:
    levels = _levels(m["encoder.downsamples"], "downsamples")
    for level in levels:
        check_shortcut(level, _CONV, *factors(level), averages=True)
    side = multiple_of(2 * math.prod(factors(level)[1] for level in levels))
    C, Z = m.shape("encoder.conv1.weight")[1] // 4, m.shape("decoder.conv1.weight")[1]
    return {"C": exactly(C), "H": side, "W": side, **statistics_fits(Z)}


def _wan22_decoder_fits(m: Module) -> dict[str, Fit]:
    for level in _levels(m["decoder.upsamples"], "upsamples"):
        check_shortcut(level, _CONV, *factors(level), averages=False)
    return _decoder_fits(m)


def _levels(m: Module, layers: str) -> list[Module]:
    return [m[i][layers] for i in range(m.count())]


def check_shortcut(level: Module, conv: str, frames: int, side: int, averages: bool) -> None:
    """Raise BadInput unless a level's shortcut can share out its channels evenly. conv: its first convolution"""
    outputs, inputs = level.shape(conv)[:2]
    whole, parts = (inputs, outputs) if averages else (outputs, inputs)
    whole *= frames * side * side
    if whole % parts and (averages or side > 1):
        raise BadInput(
            f'"{level.prefix}{conv}" maps {inputs} channels to {outputs}: the shortcut '
            f"{'averages' if averages else 'repeats'} {whole} values in {parts} equal groups; the file is damaged"
        )


COMPONENTS = {
    "wan-vae-encoder": Component(
        "wan-vae",
        vae_wan.encode,
        {"x": Argument("N C F H W", VALUE, "picture or video, -1..1; a picture has F = 1, a video F = 1 + 4f")},
        {"mean": "N Z 1+f H/8 W/8", "logvar": "N Z 1+f H/8 W/8"},
        _STATISTICS,
        _encoder_fits,
    ),
    "wan-vae-decoder": Component(
        "wan-vae",
        vae_wan.decode,
        {"z": Argument("N Z F H W", VALUE, "latent, normalised, as the denoiser has it; a picture has F = 1")},
        {"out": "N C 4F-3 8H 8W"},
        _STATISTICS,
        _decoder_fits,
    ),
    "wan22-vae-encoder": Component(
        "wan22-vae",
        vae_wan.encode_wan22,
        {"x": Argument("N C F H W", VALUE, "picture or video, -1..1; a picture has F = 1, a video F = 1 + 4f")},
        {"mean": "N Z 1+f H/16 W/16", "logvar": "N Z 1+f H/16 W/16"},
        _WAN22_STATISTICS,
        _wan22_encoder_fits,
    ),
    "wan22-vae-decoder": Component(
        "wan22-vae",
        vae_wan.decode_wan22,
        {"z": Argument("N Z F H W", VALUE, "latent, normalised, as the denoiser has it; a picture has F = 1")},
        {"out": "N C 4F-3 16H 16W"},
        _WAN22_STATISTICS,
        _wan22_decoder_fits,
    ),
}
