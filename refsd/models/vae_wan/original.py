"""Diffusers' autoencoders of Wan and Qwen-Image."""

from refsd.networks.original import diffusers


def _encode(model, x, params):
    mean, logvar = model.encode(x["x"]).latent_dist.parameters.chunk(2, dim=1)
    of_mean, std = _statistics(model, x["x"])
    return {"mean": (mean - of_mean) * (1 / std), "logvar": logvar - 2 * std.log()}


def _decode(model, x, params):
    """Return the picture as the decoder gives it, chunk by chunk: diffusers clips it afterwards."""
    import torch

    mean, std = _statistics(model, x["z"])
    chunks = []
    hook = model.decoder.register_forward_hook(lambda module, given, y: chunks.append(y))
    try:
        model.decode(x["z"] / (1 / std) + mean)
    finally:
        hook.remove()
    out = torch.cat(chunks, 2)
    if model.config.get("patch_size") is not None:
        from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify

        out = unpatchify(out, model.config.patch_size)
    return {"out": out}


def _statistics(model, like):
    """Return mean and standard deviation of the latent's channels, as in QwenImagePipeline."""
    config = model.config
    mean, std = (
        like.new_tensor(values)[:, None, None, None] for values in (config.latents_mean, config.latents_std)
    )
    return mean, std


def _taps(taps, x):
    """Join the taps of each chunk of frames: diffusers calls a layer once for each."""
    import torch

    ((_, given),) = x.items()
    chunks: dict[str, list] = {}
    for name, y in taps.items():
        first, _, again = name.rpartition(".")
        chunks.setdefault(first if again.isdigit() and first in taps else name, []).append(y)
    joined = {}
    for name, parts in chunks.items():
        # A layer on pictures has the frames of a chunk in its batch.
        videos = [y if y.ndim == 5 else y.unflatten(0, (len(given), -1)).transpose(1, 2) for y in parts]
        y = torch.cat(videos, 2)
        joined[name] = y if parts[0].ndim == 5 else y.transpose(1, 2).flatten(0, 1)
    return joined


ORIGINALS = {
    "wan-vae-encoder": diffusers("vae", "AutoencoderKLQwenImage", _encode, laid_out=_taps),
    "wan-vae-decoder": diffusers("vae", "AutoencoderKLQwenImage", _decode, laid_out=_taps),
    "wan22-vae-encoder": diffusers("vae", "AutoencoderKLWan", _encode, laid_out=_taps),
    "wan22-vae-decoder": diffusers("vae", "AutoencoderKLWan", _decode, laid_out=_taps),
}
