"""An eleventh fresh set, of blocks and models: from public trackers, drawn before a look at the judge."""

import ml_dtypes
import numpy as np
from eleventh_operations import ELEVENTH_OPERATIONS
from eleventh_steps import ELEVENTH_STEPS
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, wrong_operation

from refsd.models import language_model, qwen_vision, vae
from refsd.module import block

# --- blocks ------------------------------------------------------------------------------------------------------


@block
def _turned_before_norms(m, x, angle, mask, eps, scale=None):
    """Queries and keys are turned first, then normalised."""
    N, L, _ = x.shape
    q, k, v = (m.linear(name, x).reshape(N, L, -1, 2 * angle.shape[-1]) for name in ("q_proj", "k_proj", "v_proj"))
    q, k = m.rope_halves(q, angle), m.rope_halves(k, angle)
    q, k = m.rms_norm_apart("q_norm.weight", q, eps), m.rms_norm_apart("k_norm.weight", k, eps)
    return m.linear("o_proj", m.attention(q, k, v, mask=mask, diagonal=0).reshape(N, L, -1))


@block
def _attention_last(m, h, num_groups):
    """The middle's attention runs one step too late, behind the second block."""
    h = vae.res_block(m["block_2"], vae.res_block(m["block_1"], h, num_groups), num_groups)
    return vae.attention(m["attn_1"], h, num_groups) if "attn_1" in m else h


@block
def _padded_all_round(m, h, num_groups):
    """Pictures are padded on all sides before they are halved, not below and to the right."""
    for i in range(m.count("block")):
        h = vae.res_block(m["block"][i], h, num_groups)
    return m.conv2d("downsample.conv", h, stride=2, padding=1) if "downsample" in m else h


# --- models ------------------------------------------------------------------------------------------------------


def _other_eps(a, right, x, weight=None, bias=None, eps=1e-6):
    """The norm before the cross-attention, the only one with weights, has PyTorch's eps."""
    return right(x, weight, bias, eps if weight is None else 1e-5)


def _times_of_bf16(inputs):
    times = np.asarray(inputs["timesteps"], np.float32)
    return {**inputs, "timesteps": times.astype(ml_dtypes.bfloat16).astype(inputs["timesteps"].dtype)}


_TABLE = {
    "e-te-01": (
        "block",
        "vllm-project/vllm-metal#660, the other way round",
        _model(
            Bug(patched=_patch(language_model, "self_attention", _turned_before_norms)),
            "rms_norm|rope|q_norm|k_norm|self_attn",
            "order|before|after|behind|first|exchang",
            "qwen3-4b/qwen3/whole",
            "qwen3-4b/qwen3/padded",
        ),
    ),
    "e-te-02": (
        "block",
        "NVIDIA-NeMo/Megatron-Bridge#4661, in Gemma 2",
        _model(
            wrong_operation(gelu=lambda a, right, x, approximate="none": right(x, "none")),
            "gelu|mlp",
            "gelu|erf|exact|tanh",
            "gemma2-2b/gemma2/padded",
        ),
    ),
    "e-vis-01": (
        "model",
        "lablup/mlxcel#1601",
        _model(
            Bug(patched=_patch(qwen_vision, "row_by_row", lambda tokens, order: tokens[:, order])),
            "tokens|merger|output",
            "order|inverse|windows",
            "qwen2.5-vl-mmproj/qwen2_5_vision/wide",
        ),
    ),
    "e-vis-02": (
        "model",
        "nvidia-cosmos/cosmos-rl#171",
        _model(
            Bug(patched=_patch(qwen_vision, "runs_of", lambda i, whole, sizes: sizes)),
            "attention|attn",
            "window|every block|whole",
            "qwen2.5-vl-mmproj/qwen2_5_vision/wide",
        ),
    ),
    "e-mod-01": (
        "model",
        "NVIDIA/TensorRT-LLM#12128",
        _model(
            wrong_operation(layer_norm=_other_eps),
            "norm3|layer_norm",
            "eps",
            "wan/wan/frames",
            "wan/wan/picture",
        ),
    ),
    "e-mod-02": (
        "model",
        "utensils/mold#786",
        _model(
            Bug(inputs=_times_of_bf16),
            "timestep|time",
            "bf16|bfloat16|rounded|precision|whole|timestep",
            "wan/wan/frames",
            "wan/wan/picture",
        ),
    ),
    "e-vae-01": (
        "block",
        "patil-suraj/vqgan-jax#10, in the middle block",
        _model(
            Bug(patched=_patch(vae, "mid", _attention_last)),
            "mid",
            "order|before|after|behind|late",
            "flux-vae/vae-decoder/wide",
            "sd15/vae-encoder/tall",
        ),
    ),
    "e-vae-02": (
        "block",
        "VincentGourbin/flux-2-swift-mlx#106",
        _model(
            Bug(patched=_patch(vae, "down", _padded_all_round)),
            "downsample",
            "padding|padded|pad",
            "flux2-vae/flux2-vae-encoder/tall",
        ),
    ),
}
ELEVENTH: dict[str, HeldOut] = {
    **ELEVENTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **ELEVENTH_STEPS,
}
