"""The components of Qwen-Image 2.1's autoencoder."""

from refsd.models import vae_qwen_image21
from refsd.models.vae_qwen_image21 import factors
from refsd.models.vae_qwen_image21.network import LATENTS_MEAN, LATENTS_STD
from refsd.models.vae_wan.component import check_shortcut, statistics_fits
from refsd.module import Module
from refsd.networks.component import VALUE, Argument, Component
from refsd.networks.fits import Fit, exactly, multiple_of

_CONV = "resnets.0.conv1.weight"
_STATISTICS = {"latents_mean": list(LATENTS_MEAN), "latents_std": list(LATENTS_STD)}


def _encoder_fits(m: Module) -> dict[str, Fit]:
    blocks = m["encoder.down_blocks"]
    levels = [blocks[i] for i in range(blocks.count())]
    for level in levels:
        check_shortcut(level, _CONV, *factors(level, "downsampler"), averages=True)
    side = multiple_of(2 ** sum("downsampler" in level for level in levels))
    C, Z = m.shape("encoder.conv_in.weight")[1], m.shape("decoder.conv_in.weight")[1]
    return {"C": exactly(C), "H": side, "W": side, **statistics_fits(Z)}


def _decoder_fits(m: Module) -> dict[str, Fit]:
    blocks = m["decoder.up_blocks"]
    for level in (blocks[i] for i in range(blocks.count())):
        check_shortcut(level, _CONV, *factors(level, "upsampler"), averages=False)
    Z = m.shape("decoder.conv_in.weight")[1]
    return {"Z": exactly(Z), **statistics_fits(Z)}


COMPONENTS = {
    "qwen-image21-vae-encoder": Component(
        "qwen-image21-vae",
        vae_qwen_image21.encode,
        {"x": Argument("N C H W", VALUE, "picture with alpha, -1..1")},
        {"mean": "N Z H/16 W/16", "logvar": "N Z H/16 W/16"},
        _STATISTICS,
        _encoder_fits,
    ),
    "qwen-image21-vae-decoder": Component(
        "qwen-image21-vae",
        vae_qwen_image21.decode,
        {"z": Argument("N Z H W", VALUE, "latent, normalised, as the denoiser has it")},
        {"out": "N C 16H 16W"},
        _STATISTICS,
        _decoder_fits,
    ),
}
