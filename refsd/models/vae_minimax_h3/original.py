"""Diffusers' MiniMax-H3 video autoencoder, called as its pipeline calls it."""

from refsd.models import vae_minimax_h3 as vae
from refsd.networks.original import diffusers
from refsd.networks.torch_tokens import joined


def _encode(model, x, params):
    _tiles(model, params)
    pixels = (x["x"] / 2 + 0.5 - _of_channels(x["x"], vae.PIXEL_MEAN)) / _of_channels(x["x"], vae.PIXEL_STD)
    mean, logvar = model.encode(pixels).latent_dist.parameters.chunk(2, dim=1)
    of_mean, std = _statistics(model, x["x"])
    return {"mean": (mean - of_mean) / std, "logvar": logvar - 2 * std.log()}


def _decode(model, x, params):
    """Decode; one latent as MiniMax's code does pictures, two as stable-diffusion.cpp: diffusers does neither."""
    _tiles(model, params)
    of_mean, std = _statistics(model, x["z"])
    z = x["z"] * std + of_mean
    F = z.shape[2]
    if F == 1:
        pixels = model._decode_clip(z)[:, :, -1:]
    else:
        more = vae.CLIP_LATENTS + vae.SHARED_LATENTS - F if F + vae.DROP == vae.CLIP_LATENTS else 0
        pixels = model.decode(joined([z, *[z[:, :, -1:]] * more], 2)).sample[:, :, : vae.frames_of(F)]
    return {"out": (pixels * _of_channels(z, vae.PIXEL_STD) + _of_channels(z, vae.PIXEL_MEAN)) * 2 - 1}


def _tiles(model, params):
    tile, overlap = params.get("tile", vae.TILE), params.get("overlap", vae.OVERLAP)
    model.enable_tiling(tile, tile, overlap, overlap)


def _statistics(model, like):
    return _of_channels(like, model.config.latents_mean), _of_channels(like, model.config.latents_std)


def _of_channels(like, values):
    return like.new_tensor(values)[:, None, None, None]


ORIGINALS = {
    "minimax-h3-vae-encoder": diffusers("vae", "AutoencoderKLMiniMaxH3", _encode),
    "minimax-h3-vae-decoder": diffusers("vae", "AutoencoderKLMiniMaxH3", _decode),
}
