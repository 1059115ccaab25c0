"""Diffusers' LTX-2 video autoencoder, called as its pipeline calls it."""

from refsd.networks.original import diffusers


def _encode(model, x, params):
    _edges(model.encoder, params, "encoder", True, False)
    mean, logvar = model.encode(x["x"]).latent_dist.parameters.chunk(2, dim=1)
    of_mean, std = _statistics(model)
    return {"mean": (mean - of_mean) / std, "logvar": logvar - 2 * std.log()}


def _decode(model, x, params):
    _edges(model.decoder, params, "decoder", False, True)
    for level in model.decoder.up_blocks:
        level.upsamplers[0].residual = params.get("shortcuts", True)
    of_mean, std = _statistics(model)
    return {"out": model.decode(x["z"] * std + of_mean, x.get("timesteps")).sample}


def _edges(half, params, name, causal, mirrors):
    from torch.nn import Conv3d

    half.is_causal = params.get(f"{name}_causal", causal)
    for layer in half.modules():
        if isinstance(layer, Conv3d):
            layer.padding_mode = "reflect" if params.get(f"{name}_mirrors", mirrors) else "zeros"


def _statistics(model):
    return model.latents_mean[:, None, None, None], model.latents_std[:, None, None, None]


ORIGINALS = {
    "ltx2-vae-encoder": diffusers("vae", "AutoencoderKLLTX2Video", _encode),
    "ltx2-vae-decoder": diffusers("vae", "AutoencoderKLLTX2Video", _decode),
}
