"""A small FLUX.1 of diffusers that attends by SageAttention, judged by refsd.watch under two profiles.

TRITON_INTERPRET=1 python -P tests/peers/sageattention_model.py float16 torch-f16-sage
"""

import json
import sys

import torch
from diffusers import FluxTransformer2DModel

import refsd
from refsd.engines import sageattention

_TORCHS = torch.nn.functional.scaled_dot_product_attention


def by_sage(query, key, value, attn_mask=None, scale=None, **more):
    """Attend by SageAttention's kernels. Their heads have 64 channels: others are filled up with zeros."""
    D = query.shape[-1]
    if attn_mask is not None or more.get("is_causal") or D > 64 or key.shape[2] % 64:
        return _TORCHS(query, key, value, attn_mask, scale=scale, **more)
    q, k, v = (torch.nn.functional.pad(t, (0, 64 - D)).transpose(1, 2) for t in (query, key, value))
    params = {"smooth": True, "scale": D**-0.5 if scale is None else scale}
    return sageattention._attention(torch, {"q": q, "k": k, "v": v}, params).transpose(1, 2)[..., :D]


def model(dtype) -> FluxTransformer2DModel:
    """Two blocks, whose scores are large enough for codes of 8 bits to move them."""
    torch.manual_seed(1)
    made = FluxTransformer2DModel(
        patch_size=1,
        in_channels=8,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=48,
        num_attention_heads=2,
        joint_attention_dim=24,
        pooled_projection_dim=12,
        axes_dims_rope=(8, 20, 20),
    )
    for name, parameter in made.named_parameters():
        if "norm_q" in name or "norm_k" in name or "norm_added" in name:
            torch.nn.init.constant_(parameter, 2.5)
    return made.to(dtype)


def inputs(dtype) -> dict[str, torch.Tensor]:
    """120 tokens of a picture and 8 of words: two whole blocks of keys."""
    place = torch.arange(120)
    given = {
        "hidden_states": torch.randn(2, 120, 8),
        "encoder_hidden_states": torch.randn(2, 8, 24),
        "pooled_projections": torch.randn(2, 12),
        "timestep": torch.tensor([0.3, 0.8]),
        "img_ids": torch.stack([place * 0, place // 12, place % 12], 1),
        "txt_ids": torch.zeros(8, 3),
    }
    return {name: tensor.to(dtype) for name, tensor in given.items()}


def main(dtype: str, profile: str) -> None:
    flux, given = model(getattr(torch, dtype)), inputs(getattr(torch, dtype))
    torch.nn.functional.scaled_dot_product_attention = by_sage
    found = []
    for numerics in (profile, None):
        with refsd.watch(flux, numerics=numerics, show=None) as report, torch.inference_mode():
            flux(**given)
        found.append({"passed": report.passed, "taps": report.calls[0].taps, "text": str(report)})
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
