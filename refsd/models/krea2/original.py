"""Diffusers' transformer of Krea 2."""

from refsd.networks.original import diffusers
from refsd.networks.torch_tokens import grid, joined, pack, unpack


def _run(model, x, params):
    picture = grid(x["x"], 2, (0,))
    ids = joined([picture.new_zeros(x["context"].shape[1], 3), picture], 0)
    seen = x["context_mask"].bool() if "context_mask" in x else None
    y = model(pack(x["x"]), x["context"], x["timesteps"], ids, seen).sample
    return {"out": unpack(y, *x["x"].shape[2:])}


def _taps(taps, x):
    """Drop the axis of one token that diffusers' time has."""
    of_time = ("time_embed.", "time_mod_proj")
    return {name: y[:, 0] if name.startswith(of_time) else y for name, y in taps.items()}


ORIGINALS = {
    "krea2": diffusers("transformer", "Krea2Transformer2DModel", _run, laid_out=_taps),
}
