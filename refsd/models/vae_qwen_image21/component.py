"""The components of Qwen-Image 2.1's autoencoder."""

from refsd.models import vae_qwen_image21
from refsd.models.vae_qwen_image21 import factors
from refsd.models.vae_qwen_image21.network import LATENTS_MEAN, LATENTS_STD
from refsd.module import Module
from refsd.networks.component import VALUE, Argument, Component, Fit, exactly, multiple_of, numbers
from refsd.numerics.errors import BadInput

_STATISTICS = {"latents_mean": list(LATENTS_MEAN), "latents_std": list(LATENTS_STD)}


def _statistics_fit(m: Module) -> dict[str, Fit]:
    Z = m.shape("decoder.conv_in.weight")[1]
    return {"latents_mean": numbers(Z), "latents_std": numbers(Z, above_zero=True)}


def _encoder_fits(m: Module) -> dict[str, Fit]:
    blocks = m["encoder.down_blocks"]
    levels = [blocks[i] for i in range(blocks.count())]
    for level in levels:
        frames, side = factors(level, "downsampler")
        _shares(level, frames * side * side, "averages", into=True)
    side = multiple_of(2 ** sum("downsampler" in level for level in levels))
    C = m.shape("encoder.conv_in.weight")[1]
    return {"C": exactly(C), "H": side, "W": side, **_statistics_fit(m)}


def _decoder_fits(m: Module) -> dict[str, Fit]:
    blocks = m["decoder.up_blocks"]
    for level in (blocks[i] for i in range(blocks.count())):
        frames, side = factors(level, "upsampler")
        if side > 1:
            _shares(level, frames * side * side, "repeats", into=False)
    return {"Z": exactly(m.shape("decoder.conv_in.weight")[1]), **_statistics_fit(m)}


def _shares(level: Module, factor: int, what: str, into: bool) -> None:
    """Raise BadInput unless a level's shortcut can share out its channels evenly."""
    outputs, inputs = level.shape("resnets.0.conv1.weight")[:2]
    whole, parts = (inputs * factor, outputs) if into else (outputs * factor, inputs)
    if whole % parts:
        raise BadInput(
            f'"{level.prefix}resnets.0.conv1.weight" maps {inputs} channels to {outputs}: the shortcut {what} '
            f"{whole} values in {parts} equal groups; the file is damaged"
        )


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
