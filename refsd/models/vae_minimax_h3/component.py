"""The components of MiniMax-H3's video autoencoder."""

from refsd.models import vae_minimax_h3 as vae
from refsd.models.vae_minimax_h3 import FRAMES, SIDE
from refsd.models.vae_minimax_h3.network import BLOCKS, LATENTS_MEAN, LATENTS_STD, LEVELS
from refsd.models.vae_wan.component import statistics_fits
from refsd.module import Module
from refsd.networks.component import VALUE, Argument, Component
from refsd.networks.fits import Fit, exactly, multiple_of, whole_heads
from refsd.numerics.errors import BadInput

_STATISTICS = {"latents_mean": list(LATENTS_MEAN), "latents_std": list(LATENTS_STD)}
_TILES = {"tile": vae.TILE, "overlap": vae.OVERLAP}
# A convolution mirrors the pixels next to an edge, so the smallest level needs two.
_SIDE = Fit(2 * SIDE, f"a multiple of {SIDE}, at least {2 * SIDE}", lambda n: n % SIDE == 0 and n >= 2 * SIDE)


def _fits(Z: int) -> dict[str, Fit]:
    return {**statistics_fits(Z), "tile": _SIDE, "overlap": multiple_of(SIDE)}


def _encoder_fits(m: Module) -> dict[str, Fit]:
    there = m["encoder.down"].count()
    if there != LEVELS:
        raise BadInput(f"the encoder has {there} levels: refsd computes {LEVELS}; the file is damaged")
    return {"C": exactly(3), "H": _SIDE, "W": _SIDE, **_fits(m.shape("quant_conv.weight")[0] // 2)}


def _decoder_fits(m: Module) -> dict[str, Fit]:
    whole_heads(m, f"{BLOCKS}0.attn.to_out.weight", vae.HEAD_DIM, ())
    Z, rows = m.shape("post_quant_conv.weight")[0], m.shape("decoder.proj_out.weight")[0]
    if rows != 3 * FRAMES * SIDE**2:
        raise BadInput(
            f'"decoder.proj_out.weight" has {rows} rows: a latent is {FRAMES} frames of 3 x {SIDE} x {SIDE}'
        )
    return {"Z": exactly(Z), **_fits(Z)}


COMPONENTS = {
    "minimax-h3-vae-encoder": Component(
        "minimax-h3-vae",
        vae.encode,
        {"x": Argument("N C F H W", VALUE, "picture or video, -1..1; a picture has F = 1, a video F = 5 + 17n")},
        {"mean": "N Z f H/16 W/16", "logvar": "N Z f H/16 W/16"},
        {**_STATISTICS, **_TILES, "eps": vae.NORM_EPS},
        _encoder_fits,
    ),
    "minimax-h3-vae-decoder": Component(
        "minimax-h3-vae",
        vae.decode,
        {"z": Argument("N Z F H W", VALUE, "latent, normalised, as the denoiser has it; a picture has F = 1")},
        {"out": "N C f 16H 16W"},
        {**_STATISTICS, **_TILES, "theta": vae.THETA, "decoder_eps": vae.DECODER_EPS},
        _decoder_fits,
    ),
}
