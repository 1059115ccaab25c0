"""Diffusers' tiny autoencoders."""

from refsd.networks.original import diffusers


def _encode(model, x, params):
    return {"mean": model.encode(2 * x["x"] - 1).latents}


def _decode(model, x, params):
    return {"out": (model.decode(x["z"]).sample + 1) / 2}


def _taps(taps, x):
    """Drop the last layer's tap: it is the output before diffusers converts it to -1..1 and rounds it."""
    last = max(taps, key=lambda name: int(name.split(".")[1]))
    return {name: y for name, y in taps.items() if name != last}


ORIGINALS = {
    "tae-encoder": diffusers("vae", "AutoencoderTiny", _encode),
    "tae-decoder": diffusers("vae", "AutoencoderTiny", _decode, laid_out=_taps),
}
