"""Transformers' vision tower of Qwen3-VL."""

from refsd.networks.original import transformers


def _run(model, x, params):
    import torch

    N, C, H, W = x["x"].shape
    patch, frames = model.patch_size, model.config.temporal_patch_size
    high, wide = H // patch, W // patch
    cut = x["x"].reshape(N, C, high // 2, 2, patch, wide // 2, 2, patch).permute(0, 2, 5, 3, 6, 1, 4, 7)
    pixels = cut.unsqueeze(6).expand(*cut.shape[:6], frames, patch, patch).reshape(N * high * wide, -1)
    y = model(pixels, grid_thw=torch.tensor([[1, high, wide]] * N, device=pixels.device))
    deepstack = torch.stack([part.reshape(N, high * wide // 4, -1) for part in y.deepstack_features], 1)
    return {"tokens": y.pooler_output.reshape(N, high * wide // 4, -1), "deepstack": deepstack}


def _taps(taps, x):
    """Split the patches of all pictures, which follow each other. [N L, D] -> [N, L, D]"""
    return {name: y.reshape(len(x["x"]), -1, y.shape[-1]) if y.ndim == 2 else y for name, y in taps.items()}


ORIGINALS = {"qwen3_vision": transformers("image_encoder", "Qwen3VLVisionModel", _run, laid_out=_taps)}
