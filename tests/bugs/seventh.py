"""A seventh fresh set, of models: from public trackers, drawn before a look at the judge."""

from unittest.mock import patch

import numpy as np
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, wrong_operation
from seventh_operations import SEVENTH_OPERATIONS
from seventh_steps import SEVENTH_STEPS

from refsd.models import qwen_vl
from refsd.module import Module
from refsd.numerics.tensor import stored


def _norm_of_transformers(wrong):
    """Another group_norm where its eps is 1e-6: in a UNet, before each transformer."""

    def group_norm(a, right, x, weight, bias, num_groups=32, eps=1e-5):
        own = (weight, bias, num_groups)
        return wrong(right, x, *own) if eps == 1e-6 else right(x, *own, eps)

    return wrong_operation(group_norm=group_norm)


def _twice(right, x, *own):
    return right(right(x, *own, 1e-6), *own, 1e-6)


def _default_eps(right, x, *own):
    return right(x, *own, 1e-5)


def _not_reversed(inputs):
    """The time is sigma, not 1 - sigma."""
    return {**inputs, "timesteps": 1 - inputs["timesteps"]}


def _last_norm_left_out():
    right = Module.layer_norm

    def wrong(m, name, x, eps=1e-5):
        return x if name == "post_layernorm" else right(m, name, x, eps)

    return patch.object(Module, "layer_norm", wrong)


def _scaled_already(weights):
    """Embeddings come out multiplied by sqrt(D), and are multiplied again."""
    return {
        name: stored((t.values() * np.sqrt(t.shape[1])).astype(np.float32))
        if name.endswith("embed_tokens.weight")
        else t
        for name, t in weights.items()
    }


def _time_alone(inputs):
    """Row and column of a token are read where its time is."""
    return {**inputs, "positions": inputs["positions"][..., :1] + np.zeros_like(inputs["positions"])}


_TABLE = {
    "a-unet-01": (
        "model",
        "huggingface/diffusers#1381",
        _model(_norm_of_transformers(_twice), "norm", "twice|again", "sdxl/unet/*", "sd21/unet/first-step"),
    ),
    "a-unet-02": (
        "model",
        "ml-explore/mlx-examples#1434",
        _model(_norm_of_transformers(_default_eps), "norm", r"eps", "sd15/unet/quiet", "sd21/unet/quiet"),
    ),
    "a-mod-01": (
        "model",
        "vllm-project/vllm-omni#776",
        _model(
            Bug(params=lambda params: {**params, "zero_cond_t": False}),
            "timestep_embedding|transformer_blocks|img_mod",
            "zero_cond_t|time 0|references have the sampler's time",
            "qwen-image-edit-2511/qwen-image/edit",
        ),
    ),
    "a-mod-02": (
        "model",
        "kohya-ss/sd-scripts#2215",
        _model(Bug(inputs=_not_reversed), "t_embedder|timestep", "1 - |reversed|backwards", "lumina2/lumina2/*"),
    ),
    "a-mod-03": (
        "model",
        "mlc-ai/mlc-llm#3456",
        _model(
            Bug(patched=_last_norm_left_out),
            "post_layernorm|embeds|visual_projection",
            r"post_layernorm|x is read from the first slice .*layers\.\d: the layers in between",
            "clip-vision-h/clip-vision/square",
        ),
    ),
    "a-mod-04": (
        "model",
        "TensorAuto/OpenTau#179, in Gemma 2",
        _model(
            Bug(weights=_scaled_already),
            "embed",
            r"twice|sqrt|again|what model\.multiply should be",
            "gemma2-2b/gemma2/padded",
        ),
    ),
    "a-mod-05": (
        "model",
        "sgl-project/sglang#34446, in Qwen2.5-VL",
        _model(
            Bug(inputs=_time_alone),
            "rope|attn",
            "time|temporal|first (axis|position|of)|axes",
            "qwen2.5-vl-7b/qwen2_5_vl/image",
        ),
    ),
    "a-mod-06": (
        "model",
        "vllm-project/vllm-omni#1784, in Qwen3-VL",
        _model(
            Bug(patched=_patch(qwen_vl, "interleaved", qwen_vl.in_turn)),
            "rope|attn",
            "interleav|in turn|sections|segments",
            "qwen3-vl-4b/qwen3_vl/image",
        ),
    ),
}
SEVENTH: dict[str, HeldOut] = {
    **SEVENTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **SEVENTH_STEPS,
}
