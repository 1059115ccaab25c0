"""Diffusers' autoencoder of Qwen-Image 2.1, whose tensors have an axis for a single frame."""

from refsd.networks.original import diffusers


def _encode(model, x, params):
    mean, logvar = model.encode(x["x"][:, :, None]).latent_dist.parameters[:, :, 0].chunk(2, dim=1)
    of_mean, std = _statistics(model, x["x"])
    return {"mean": (mean - of_mean) * (1 / std), "logvar": logvar - 2 * std.log()}


def _decode(model, x, params):
    """Return the picture as the decoder gives it: diffusers clips it afterwards."""
    mean, std = _statistics(model, x["z"])
    pictures = []
    hook = model.decoder.register_forward_hook(lambda module, given, y: pictures.append(y))
    try:
        model.decode((x["z"] / (1 / std) + mean)[:, :, None])
    finally:
        hook.remove()
    return {"out": pictures[0][:, :, 0]}


def _statistics(model, like):
    """Return mean and standard deviation of the latent's channels, as in QwenImage21Pipeline."""
    config = model.config
    mean, std = (like.new_tensor(values)[:, None, None] for values in (config.latents_mean, config.latents_std))
    return mean, std


def _taps(taps, x):
    return {name: y[:, :, 0] if y.ndim == 5 else y for name, y in taps.items()}


ORIGINALS = {
    "qwen-image21-vae-encoder": diffusers("vae", "AutoencoderKLQwenImage21", _encode, laid_out=_taps),
    "qwen-image21-vae-decoder": diffusers("vae", "AutoencoderKLQwenImage21", _decode, laid_out=_taps),
}
