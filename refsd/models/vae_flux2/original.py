"""Diffusers' autoencoder of FLUX.2."""

from refsd.networks.original import diffusers


def _encode(model, x, params):
    mean, std = _statistics(model)
    packed = _packed(model.encode(x["x"]).latent_dist.mode())
    if params.get("squares_first"):
        packed = packed.unflatten(1, (-1, 4)).transpose(1, 2).flatten(1, 2)
    return {"mean": (packed - mean) / std}


def _decode(model, x, params):
    mean, std = _statistics(model)
    z = x["z"] * std + mean
    if params.get("squares_first"):
        z = z.unflatten(1, (4, -1)).transpose(1, 2).flatten(1, 2)
    return {"out": model.decode(_unpacked(z)).sample}


def _statistics(model):
    """Return mean and standard deviation of the latent's channels, from the BatchNorm as in Flux2Pipeline."""
    norm = model.bn
    return norm.running_mean[:, None, None], (norm.running_var + model.config.batch_norm_eps).sqrt()[:, None, None]


def _packed(z):
    N, C, H, W = z.shape
    return z.reshape(N, C, H // 2, 2, W // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(N, 4 * C, H // 2, W // 2)


def _unpacked(z):
    N, C, H, W = z.shape
    return z.reshape(N, C // 4, 2, 2, H, W).permute(0, 1, 4, 2, 5, 3).reshape(N, C // 4, 2 * H, 2 * W)


ORIGINALS = {
    "flux2-vae-encoder": diffusers("vae", "AutoencoderKLFlux2", _encode),
    "flux2-vae-decoder": diffusers("vae", "AutoencoderKLFlux2", _decode),
}
