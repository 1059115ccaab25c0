"""Transformers' vision tower of Qwen3-VL."""

from refsd.networks.original import transformers


def _run(model, x, params):
    import torch

    if "num_heads" in params:
        _with_heads(model, params["num_heads"])
    N, C, H, W = x["x"].shape
    patch, frames = model.patch_size, model.config.temporal_patch_size
    high, wide = H // patch, W // patch
    cut = x["x"].reshape(N, C, high // 2, 2, patch, wide // 2, 2, patch).permute(0, 2, 5, 3, 6, 1, 4, 7)
    pixels = cut.unsqueeze(6).expand(*cut.shape[:6], frames, patch, patch).reshape(N * high * wide, -1)
    y = model(pixels, grid_thw=torch.tensor([[1, high, wide]] * N, device=pixels.device))
    deepstack = torch.stack([part.reshape(N, high * wide // 4, -1) for part in y.deepstack_features], 1)
    return {"tokens": y.pooler_output.reshape(N, high * wide // 4, -1), "deepstack": deepstack}


def _with_heads(model, heads: int) -> None:
    """Give the tower the case's number of heads, which no shape tells."""
    model.config.num_heads = heads
    like = next(model.parameters())
    model.rotary_pos_emb = type(model.rotary_pos_emb)(model.config).to(like.device)
    for block in model.blocks:
        block.attn.num_heads, block.attn.head_dim = heads, block.attn.dim // heads
        block.attn.scaling = block.attn.head_dim**-0.5


def _taps(taps, x):
    """Split the patches of all pictures, which follow each other. [N L, D] -> [N, L, D]"""
    return {name: y.reshape(len(x["x"]), -1, y.shape[-1]) if y.ndim == 2 else y for name, y in taps.items()}


ORIGINALS = {"qwen3_vision": transformers("image_encoder", "Qwen3VLVisionModel", _run, laid_out=_taps)}
