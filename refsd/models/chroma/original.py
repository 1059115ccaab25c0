"""Diffusers' transformer of Chroma."""

from refsd.models.flux.original import packed
from refsd.networks.original import Arguments, Given, diffusers, per_mille, sample, timesteps
from refsd.networks.torch_tokens import grid, joined, pack, unpack
from refsd.numerics.errors import BadInput


def _run(model, x, params):
    tokens, ids = pack(x["x"]), grid(x["x"], 2, (0,))
    mask = None
    if "context_mask" in x:
        seen = x["context_mask"].bool()
        mask = joined([seen, seen.new_ones(len(seen), tokens.shape[1])], 1)
    text = ids.new_zeros(x["context"].shape[1], 3)
    y = model(tokens, x["context"], x["timesteps"], ids, text, mask).sample
    return {"out": unpack(y, *x["x"].shape[2:])}


def _taps(taps, x):
    """Put the approximator's rows before the batch axis, as the reference has them.

    Its `layers` are left out: their RMSNorm has float32's eps, 1.2e-7, in diffusers, and 1e-6 in Chroma's code.
    """
    own = "distilled_guidance_layer."
    return {
        name: y.transpose(0, 1) if name.startswith(own) else y
        for name, y in taps.items()
        if not name.startswith(f"{own}layers.")
    }


def _read(model, given: Given) -> Arguments:
    inputs, count = packed(given)
    if "reference" in inputs:
        raise BadInput("the call has positions of several pictures; Chroma's reference takes one")
    inputs["timesteps"] = per_mille(timesteps(given, "timestep", len(inputs["x"])), inputs["x"].dtype)
    mask = given.get("attention_mask")
    if mask is not None:
        J = inputs["context"].shape[1]
        if not mask[:, J:].bool().all():
            raise BadInput("attention_mask hides tokens of the picture, which refsd does not compute")
        inputs["context_mask"] = mask[:, :J].bool().long()
    *_, H, W = inputs["x"].shape
    return Arguments(inputs, {}, lambda y: {"out": unpack(sample(y)[:, :count], H, W)})


ORIGINALS = {
    "chroma": diffusers(
        "transformer", "ChromaTransformer2DModel", _run, read=_read, rounds_time=True, laid_out=_taps
    ),
}
