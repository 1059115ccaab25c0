"""Diffusers' transformer of Wan."""

from refsd.networks.original import diffusers


def _run(model, x, params):
    return {"out": model(x["x"], x["timesteps"], x["context"]).sample}


ORIGINALS = {
    "wan": diffusers("transformer", "WanTransformer3DModel", _run),
}
