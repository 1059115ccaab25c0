"""Denoisers by diffusers, called as its pipelines call them."""

from refsd.components.flux2 import REFERENCES
from refsd.engines.torch.model import diffusers

_REFERENCES_APART = 10  # FLUX.2's index of the first picture to edit; FLUX.1's is 1


def _unet(model, x, params):
    return {"out": model(x["x"], x["timesteps"], x["context"], added_cond_kwargs=_added(model, x)).sample}


def _controlnet(model, x, params):
    down, middle = model(
        x["x"],
        x["timesteps"],
        x["context"],
        x["hint"],
        conditioning_scale=params.get("strength", 1.0),
        added_cond_kwargs=_added(model, x),
        return_dict=False,
    )
    return {f"control.{i}": part for i, part in enumerate([*down, middle])}


def _added(model, x):
    """Split SDXL's y, which has the sizes embedded already; the model's size embedding becomes the identity."""
    if "y" not in x:
        return None
    import torch

    model.add_time_proj = torch.nn.Identity()
    return {"text_embeds": x["y"][:, :1], "time_ids": x["y"][:, 1:]}


def _mmdit(model, x, params):
    return {"out": model(x["x"], x["context"], x["y"], x["timesteps"]).sample}


def _flux(model, x, params):
    tokens, ids = _pack(x["x"]), grid(x["x"], 2, (0,))
    if "reference" in x:
        tokens = _joined([tokens, _pack(x["reference"])], 1)
        ids = _joined([ids, grid(x["reference"], 2, (1,))], 0)
    text = ids.new_zeros(x["context"].shape[1], 3)
    y = model(tokens, x["context"], x["y"], x["timesteps"], ids, text, x.get("guidance")).sample
    return {"out": unpack(y, *x["x"].shape[2:])}


def _chroma(model, x, params):
    tokens, ids = _pack(x["x"]), grid(x["x"], 2, (0,))
    mask = None
    if "context_mask" in x:
        seen = x["context_mask"].bool()
        mask = _joined([seen, seen.new_ones(len(seen), tokens.shape[1])], 1)
    text = ids.new_zeros(x["context"].shape[1], 3)
    y = model(tokens, x["context"], x["timesteps"], ids, text, mask).sample
    return {"out": unpack(y, *x["x"].shape[2:])}


def _flux2(model, x, params):
    pictures = [x["x"], *([x["reference"]] if "reference" in x else [])]
    tokens = _joined([picture.flatten(2).transpose(1, 2) for picture in pictures], 1)
    ids = [grid(picture, 1, (_REFERENCES_APART * k,), (0,)) for k, picture in enumerate(pictures)]
    text = ids[0].new_zeros(x["context"].shape[1], 4)
    text[:, 3] += _range(text, len(text))
    y = model(tokens, x["context"], x["timesteps"], _joined(ids, 0), text, x.get("guidance")).sample
    return {"out": y[:, : x["x"][0, 0].numel()].transpose(1, 2).reshape(x["x"].shape)}


def _zimage(model, x, params):
    captions = list(x["context"])
    if "context_mask" in x:
        lengths = x["context_mask"].sum(1).tolist()
        captions = [caption[:n] for caption, n in zip(captions, lengths, strict=True)]
    y = model([latent[:, None] for latent in x["x"]], x["timesteps"], captions).sample
    return {"out": _stacked([latent[:, 0] for latent in y])}


def _lumina2(model, x, params):
    N, J, _ = x["context"].shape
    seen = x["context_mask"] if "context_mask" in x else x["timesteps"].new_ones(N, J).long()
    return {"out": model(x["x"], x["timesteps"], x["context"], seen).sample}


def _qwen_image(model, x, params):
    pictures = [x["x"], *(x[name] for name in REFERENCES if name in x)]
    sizes = [(1, picture.shape[2] // 2, picture.shape[3] // 2) for picture in pictures]
    tokens = _joined([_pack(picture) for picture in pictures], 1)
    y = model(tokens, x["context"], x.get("context_mask"), x["timesteps"], [sizes] * len(tokens)).sample
    return {"out": unpack(y, *x["x"].shape[2:])}


def _qwen_image_layered(model, x, params):
    N, T, _, H, W = x["x"].shape
    pictures = [*x["x"].unbind(1), x["condition"]]
    sizes = [(1, H // 2, W // 2)] * len(pictures)
    none = x["timesteps"].new_zeros(N).long()
    y = model(
        _joined([_pack(picture) for picture in pictures], 1),
        x["context"],
        x.get("context_mask"),
        x["timesteps"],
        [sizes] * N,
        additional_t_cond=none,
    ).sample
    return {"out": _stacked([unpack(layer, H, W) for layer in y.chunk(T + 1, 1)[:T]]).transpose(0, 1)}


def _krea2(model, x, params):
    picture = grid(x["x"], 2, (0,))
    ids = _joined([picture.new_zeros(x["context"].shape[1], 3), picture], 0)
    seen = x["context_mask"].bool() if "context_mask" in x else None
    y = model(_pack(x["x"]), x["context"], x["timesteps"], ids, seen).sample
    return {"out": unpack(y, *x["x"].shape[2:])}


def _wan(model, x, params):
    return {"out": model(x["x"], x["timesteps"], x["context"]).sample}


def _flux_taps(taps, x):
    """Drop the reference's tokens from the last layer: they are not part of the output."""
    *_, H, W = x["x"].shape
    return _first_tokens(taps, "final_layer.linear", H * W // 4)


def _qwen_image_taps(taps, x):
    *layers, H, W = x["x"].shape[1:]
    return _first_tokens(taps, "proj_out", H * W // 4 * (layers[0] if len(layers) == 2 else 1))


def _flux2_taps(taps, x):
    return _first_tokens(taps, "final_layer.linear", x["x"][0, 0].numel())


def _first_tokens(taps, name, count):
    return {tap: y[:, :count] if tap == name else y for tap, y in taps.items()}


def _chroma_taps(taps, x):
    """Put the approximator's rows before the batch axis, as the reference has them.

    Its `layers` are left out: their RMSNorm has float32's eps, 1.2e-7, in diffusers, and 1e-6 in Chroma's code.
    """
    own = "distilled_guidance_layer."
    return {
        name: y.transpose(0, 1) if name.startswith(own) else y
        for name, y in taps.items()
        if not name.startswith(f"{own}layers.")
    }


def _zimage_taps(taps, x):
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
    return _first_tokens(shown, "final_layer.linear", H * W // 4)


def _lumina2_taps(taps, x):
    """Keep only pictures' taps if captions differ in length: diffusers puts each picture right behind its own."""
    *_, H, W = x["x"].shape
    if "context_mask" in x:
        of_pictures = ("x_embedder", "t_embedder.", "noise_refiner.")
        return {name: y for name, y in taps.items() if name.startswith(of_pictures)}
    J = x["context"].shape[1]
    return {name: y[:, J : J + H * W // 4] if name == "final_layer.linear" else y for name, y in taps.items()}


def _krea2_taps(taps, x):
    """Drop the axis of one token that diffusers' time has."""
    of_time = ("time_embed.", "time_mod_proj")
    return {name: y[:, 0] if name.startswith(of_time) else y for name, y in taps.items()}


def _unpacked(rows, N):
    """[N * L, D] -> [N, L, D]"""
    return rows.reshape(N, -1, rows.shape[-1])


def _pack(x):
    """Each 2x2 square becomes a token. [N, C, H, W] -> [N, H/2 * W/2, 4C]"""
    N, C, H, W = x.shape
    return x.reshape(N, C, H // 2, 2, W // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(N, H * W // 4, 4 * C)


def unpack(tokens, H, W):
    """Unpack 2x2 squares from tokens; drop a reference's tokens, which come last. [N, L, 4C] -> [N, C, H, W]"""
    y = tokens[:, : H * W // 4]
    return y.reshape(len(y), H // 2, W // 2, -1, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(len(y), -1, H, W)


def grid(x, patch, before, after=()):
    """Return the ids of a latent's tokens: (*before, row, column, *after). -> float32 [L, A]"""
    import torch

    high, wide = (size // patch for size in x.shape[2:])
    rows, columns = torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")
    fixed = [torch.full((high, wide), value) for value in (*before, *after)]
    axes = [*fixed[: len(before)], rows, columns, *fixed[len(before) :]]
    return torch.stack(axes, -1).reshape(high * wide, -1).to(x.device, torch.float32)


def _range(like, n):
    import torch

    return torch.arange(n, device=like.device)


def _joined(parts, axis):
    import torch

    return torch.cat(parts, axis)


def _stacked(parts):
    import torch

    return torch.stack(parts)


MODELS = {
    "model/unet": diffusers("unet", "UNet2DConditionModel", _unet),
    "model/controlnet": diffusers("", "ControlNetModel", _controlnet),
    "model/mmdit": diffusers("transformer", "SD3Transformer2DModel", _mmdit),
    "model/flux": diffusers("transformer", "FluxTransformer2DModel", _flux, rounds_time=True, laid_out=_flux_taps),
    "model/chroma": diffusers(
        "transformer", "ChromaTransformer2DModel", _chroma, rounds_time=True, laid_out=_chroma_taps
    ),
    "model/flux2": diffusers(
        "transformer", "Flux2Transformer2DModel", _flux2, rounds_time=True, laid_out=_flux2_taps
    ),
    "model/qwen-image": diffusers(
        "transformer",
        "QwenImageTransformer2DModel",
        _qwen_image,
        rounds_time=True,
        laid_out=_qwen_image_taps,
    ),
    "model/qwen-image-layered": diffusers(
        "transformer",
        "QwenImageTransformer2DModel",
        _qwen_image_layered,
        rounds_time=True,
        laid_out=_qwen_image_taps,
    ),
    "model/lumina2": diffusers("transformer", "Lumina2Transformer2DModel", _lumina2, laid_out=_lumina2_taps),
    "model/krea2": diffusers("transformer", "Krea2Transformer2DModel", _krea2, laid_out=_krea2_taps),
    "model/wan": diffusers("transformer", "WanTransformer3DModel", _wan),
    "model/zimage": diffusers("transformer", "ZImageTransformer2DModel", _zimage, laid_out=_zimage_taps),
}
