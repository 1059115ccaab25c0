"""Diffusers' transformer of Lumina 2."""

from refsd.networks.original import diffusers


def _run(model, x, params):
    N, J, _ = x["context"].shape
    seen = x["context_mask"] if "context_mask" in x else x["timesteps"].new_ones(N, J).long()
    return {"out": model(x["x"], x["timesteps"], x["context"], seen).sample}


def _taps(taps, x):
    """Keep only pictures' taps if captions differ in length: diffusers puts each picture right behind its own."""
    *_, H, W = x["x"].shape
    if "context_mask" in x:
        of_pictures = ("x_embedder", "t_embedder.", "noise_refiner.")
        return {name: y for name, y in taps.items() if name.startswith(of_pictures)}
    J = x["context"].shape[1]
    return {name: y[:, J : J + H * W // 4] if name == "final_layer.linear" else y for name, y in taps.items()}


ORIGINALS = {
    "lumina2": diffusers("transformer", "Lumina2Transformer2DModel", _run, laid_out=_taps),
}
