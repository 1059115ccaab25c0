"""Diffusers' transformer of Ernie-Image."""

from refsd.networks.original import diffusers


def _run(model, x, params):
    N, J, _ = x["context"].shape
    lengths = x["context_mask"].sum(1) if "context_mask" in x else x["x"].new_full((N,), J)
    return {"out": model(x["x"], 1000 * x["timesteps"], x["context"], lengths.long()).sample}


def _taps(taps, x):
    """Put the batch first: diffusers' blocks have the tokens first, its attention does not."""
    batch_first = ("time_embedding", "adaLN_modulation", "x_embedder", "text_proj")

    def tokens_first(name):
        return not (name.startswith(batch_first) or ".self_attention" in name or name == "final_norm.linear")

    return {name: y.transpose(0, 1) if tokens_first(name) else y for name, y in taps.items()}


ORIGINALS = {
    "ernie-image": diffusers("transformer", "ErnieImageTransformer2DModel", _run, laid_out=_taps),
}
