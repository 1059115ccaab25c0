"""Diffusers' transformer of Z-Image."""

from refsd.networks.original import Arguments, Given, diffusers, per_mille, refuse, sample
from refsd.networks.torch_tokens import first_tokens, stacked
from refsd.numerics.errors import BadInput


def _run(model, x, params):
    captions = list(x["context"])
    if "context_mask" in x:
        lengths = x["context_mask"].sum(1).tolist()
        captions = [caption[:n] for caption, n in zip(captions, lengths, strict=True)]
    y = model([latent[:, None] for latent in x["x"]], x["timesteps"], captions).sample
    return {"out": stacked([latent[:, 0] for latent in y])}


def _taps(taps, x):
    """Undo Z-Image's packing: streams are padded to multiples of 32 tokens, and embedders run on all items at once.

    If captions differ in length, rows of captions and of the joint stream may stand at other places than in the
    reference, so only taps of pictures and time are kept.
    """
    N, _, H, W = x["x"].shape
    shown = dict(taps)
    shown["x_embedder"] = _unpacked(taps["x_embedder"], N)[:, : H * W // 4]
    if "context_mask" in x:
        of_pictures = ("x_embedder", "t_embedder.", "noise_refiner.")
        return {name: y for name, y in shown.items() if name.startswith(of_pictures)}
    shown["cap_embedder.1"] = _unpacked(taps["cap_embedder.1"], N)[:, : x["context"].shape[1]]
    return first_tokens(shown, "final_layer.linear", H * W // 4)


def _unpacked(rows, N):
    """[N * L, D] -> [N, L, D]"""
    return rows.reshape(N, -1, rows.shape[-1])


def _read(model, given: Given) -> Arguments:
    import torch

    refuse(given, "controlnet_block_samples", "siglip_feats", "image_noise_mask", "joint_attention_kwargs")
    x, captions = given["x"], given["cap_feats"]
    if isinstance(x[0], list) or len({tuple(latent.shape) for latent in x}) != 1 or x[0].shape[1] != 1:
        raise BadInput("the pictures of one call have several sizes or frames, which refsd does not compute")
    longest = max(len(caption) for caption in captions)
    padded = [torch.nn.functional.pad(caption, (0, 0, 0, longest - len(caption))) for caption in captions]
    t = given["t"]
    inputs = {
        "x": torch.stack([latent[:, 0] for latent in x]),
        "timesteps": per_mille(t, t.dtype).cpu().reshape(-1).expand(len(x)),
        "context": torch.stack(padded),
    }
    if any(len(caption) < longest for caption in captions):
        places = torch.arange(longest)
        inputs["context_mask"] = torch.stack([(places < len(caption)).long() for caption in captions])
    return Arguments(inputs, {}, lambda y: {"out": torch.stack([latent[:, 0] for latent in sample(y)])})


ORIGINALS = {
    "zimage": diffusers("transformer", "ZImageTransformer2DModel", _run, read=_read, laid_out=_taps),
}
