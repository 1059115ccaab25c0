"""The components of Wan 2.1's and Qwen-Image's autoencoder."""

from refsd.models import vae_wan
from refsd.models.vae_wan.network import LATENTS_MEAN, LATENTS_STD
from refsd.module import Module
from refsd.networks.component import VALUE, Argument, Component, Fit, at_least, exactly, numbers

_STATISTICS = {"latents_mean": list(LATENTS_MEAN), "latents_std": list(LATENTS_STD)}


def _statistics_fit(m: Module) -> dict[str, Fit]:
    Z = m.shape("decoder.conv1.weight")[1]
    return {"latents_mean": numbers(Z), "latents_std": numbers(Z, above_zero=True)}


def _encoder_fits(m: Module) -> dict[str, Fit]:
    layers = m["encoder.downsamples"]
    side = at_least(2 ** sum("resample" in layers[i] for i in range(layers.count())))
    C = m.shape("encoder.conv1.weight")[1]
    return {"C": exactly(C), "H": side, "W": side, **_statistics_fit(m)}


def _decoder_fits(m: Module) -> dict[str, Fit]:
    return {"Z": exactly(m.shape("decoder.conv1.weight")[1]), **_statistics_fit(m)}


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
}
