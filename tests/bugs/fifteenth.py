"""A fifteenth fresh set, of blocks and models: from public trackers, drawn before a look at the judge."""

import ml_dtypes
import numpy as np
from fifteenth_operations import FIFTEENTH_OPERATIONS
from fifteenth_steps import FIFTEENTH_STEPS
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, wrong_operation

from refsd.models import mmdit, qwen_image, qwen_vision, zimage
from refsd.module import block
from refsd.numerics.tensor import stored

# --- blocks ------------------------------------------------------------------------------------------------------


def _modulated_goes_on(m, context, x, c, head_dim=64):
    """What the attention is given is written over x: its result is added to that."""
    txt, img = m["context_block"], m["x_block"]
    txt_attn, txt_mlp, _ = mmdit.modulation(txt, c)
    img_attn, img_mlp, _ = mmdit.modulation(img, c)
    context = txt.adaptive_layer_norm(context, *txt_attn[:2])
    x = img.adaptive_layer_norm(x, *img_attn[:2])
    both = mmdit.qkv(txt["attn"], context, head_dim), mmdit.qkv(img["attn"], x, head_dim)
    q, k, v = (np.concatenate([t, i], axis=1) for t, i in zip(*both, strict=True))
    txt_y, img_y = np.split(mmdit.attention(m, q, k, v), [context.shape[1]], axis=1)
    x = mmdit.gated_mlp(img, m.gated_add(x, img.linear("attn.proj", img_y), img_attn[2]), *img_mlp)
    if not txt_mlp:
        return None, x
    context = m.gated_add(context, txt.linear("attn.proj", txt_y), txt_attn[2])
    return mmdit.gated_mlp(txt, context, *txt_mlp), x


@block
def _attention_for_the_mlp(m, x, angle, eps, c=None, mask=None):
    """The block's second half calls the attention once more."""
    parts = (None,) * 4 if c is None else np.split(zimage.modulation(m, c), 4, axis=-1)
    for (scale, gate), name in zip((parts[:2], parts[2:]), ("attention", "ffn"), strict=True):
        h = zimage.norm(m, f"{name}_norm1", x, eps)
        h = zimage.attention(m["attention"], h if scale is None else zimage.scaled(m, h, scale), angle, mask)
        h = zimage.norm(m, f"{name}_norm2", h, eps)
        x = m.add(x, h) if gate is None else m.gated_add(x, h, m.apply(np.tanh, gate))
    return x


@block
def _text_twice(m, img, txt, angle, head_dim, mask):
    """Both of two ranks send their copy of the text's keys and values round."""
    t = qwen_image.qkv(
        m, txt, head_dim, ("add_q_proj", "add_k_proj", "add_v_proj"), ("norm_added_q", "norm_added_k")
    )
    i = qwen_image.qkv(m, img, head_dim, ("to_q", "to_k", "to_v"), ("norm_q", "norm_k"))
    q, k, v = (np.concatenate(two, axis=1) for two in zip(t, i, strict=True))
    q, k, J = m.rope(q, angle), m.rope(k, angle), txt.shape[1]
    k, v = (np.concatenate([y[:, :J], y], axis=1) for y in (k, v))
    y = m.attention(q, k, v, mask=mask).reshape(*q.shape[:2], -1)
    return m.linear("to_out.0", y[:, J:]), m.linear("to_add_out", y[:, :J])


_WORDS = {22: 7, 13: 5}  # tokens of a case -> its text's


def _within_a_rank(a, right, q, k, v, *rest, **named):
    """Text and picture are cut in two; each half attends within itself."""
    L = q.shape[1]
    ranks = [np.arange(n) >= -(-n // 2) for n in (_WORDS[L], L - _WORDS[L])]
    y = np.empty((*q.shape[:3], v.shape[3]), np.float32)
    for own in (np.concatenate(ranks), ~np.concatenate(ranks)):
        y[:, own] = right(q[:, own], k[:, own], v[:, own], *rest, **named)
    return y


# --- models ------------------------------------------------------------------------------------------------------


def _everywhere(i, whole, sizes):
    """No mask: blocks of windows see the whole picture."""
    return [sum(sizes)]


def _one_more(weights):
    """The file's norm weights hold the 1 already."""
    return {name: stored(1 + w.values()) if name.endswith("norm.weight") else w for name, w in weights.items()}


def _angles_in_bf16(a, right, *rest):
    return right(*rest).astype(ml_dtypes.bfloat16).astype(np.float64)


_TABLE = {
    "fi-blk-01": (
        "block",
        "Josh00-Lu/DiffusionVeteran#3",
        _model(
            Bug(patched=_patch(mmdit, "joint_block", _modulated_goes_on)),
            "joint_blocks|attn|add|img|x_block|context",
            "residual|added to|sum.*(norm|modulat)|skip|modulated|norm(ed|alised)",
            "sd3-medium/mmdit/between",
            "sd35-large/mmdit/last-step",
        ),
    ),
    "fi-blk-02": (
        "block",
        "explainingai-code/DiT-PyTorch#1",
        _model(
            Bug(patched=_patch(zimage, "transformer_block", _attention_for_the_mlp)),
            "ffn|feed_forward|layers|attention|refiner",
            "attention.*(again|twice|instead|for|in.*place)|(feed.forward|MLP|ffn).*(left out|skipped|not|missing)"
            "|never|other (block|part)",
            "zimage/zimage/whole",
            "zimage/zimage/masked",
        ),
    ),
    "fi-blk-03": (
        "block",
        "sgl-project/sglang#33327",
        _model(
            Bug(patched=_patch(qwen_image, "attention", _text_twice)),
            "attn|attention",
            "twice|double|two times|again|repeat|copies|count",
            "qwen-image/qwen-image/first-step",
            "qwen-image/qwen-image/edit",
        ),
    ),
    "fi-blk-04": (
        "block",
        "huggingface/diffusers#12563",
        _model(
            wrong_operation(attention=_within_a_rank),
            "attn|attention|double_blocks|single_blocks",
            "own (part|half|share)|half|halves|rank|within|part of the (keys|tokens)|other (half|part)|local"
            "|window",
            "flux-dev/flux/first-step",
            "flux-dev/flux/quiet",
        ),
    ),
    "fi-te-01": (
        "model",
        "ohdearquant/lattice#96",
        _model(
            wrong_operation(rope_halves=lambda a, right, x, angle: a.rope(x, angle)),
            "rope|self_attn|layers",
            "neighbour|pair|halves|interleav|2i",
            "qwen3-4b/qwen3/whole",
            "qwen3-4b/qwen3/padded",
        ),
    ),
    "fi-te-02": (
        "model",
        "utensils/mold#1435, its mergers",
        _model(
            wrong_operation(gelu=lambda a, right, x, approximate="none": right(x, "tanh")),
            "merger|gelu|deepstack",
            "tanh|gelu|erf",
            "qwen3-vl-8b-vision/qwen3_vision/wide",
            "qwen3-vl-8b-vision/qwen3_vision/quiet",
        ),
    ),
    "fi-te-03": (
        "model",
        "ml-explore/mlx-swift-lm#222, its mask",
        _model(
            Bug(patched=_patch(qwen_vision, "runs_of", _everywhere)),
            "blocks|attn|attention",
            "window|whole|everywhere|all patches|every block|full|mask",
            "qwen2.5-vl-mmproj/qwen2_5_vision/wide",
        ),
    ),
    "fi-te-04": (
        "model",
        "utensils/mold#1074",
        _model(
            Bug(weights=_one_more),
            "norm|layers",
            r"1 \+|\+ 1|twice|2 \+|one more|plus (1|one)|added",
            "gemma2-2b/gemma2/padded",
        ),
    ),
    "fi-te-05": (
        "model",
        "sgl-project/sglang#20679, its third point",
        _model(
            wrong_operation(rope_angles=_angles_in_bf16),
            "rope|angle|attn|blocks",
            "bf16|bfloat16|precision|rounded",
            "qwen2.5-vl-mmproj/qwen2_5_vision/wide",
        ),
    ),
}
FIFTEENTH: dict[str, HeldOut] = {
    **FIFTEENTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **FIFTEENTH_STEPS,
}
