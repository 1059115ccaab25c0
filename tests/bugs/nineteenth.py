"""A nineteenth fresh set, of models: from public trackers, drawn before a look at the judge."""

import ml_dtypes
import numpy as np
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, Injection, wrong_operation
from nineteenth_operations import NINETEENTH_OPERATIONS
from nineteenth_steps import NINETEENTH_STEPS

from refsd.models import qwen_image, qwen_vl

# --- places ------------------------------------------------------------------------------------------------------


def _from_0(H, W, index=0):
    row, column = np.indices((H // 2, W // 2)).reshape(2, -1)
    return np.stack([np.full_like(row, index), row, column], axis=-1)


def _words_alone(values):
    """Pictures' tokens have the next numbers, as words have."""
    seen = values.get("attention_mask")
    shape = values["positions"].shape
    count = np.arange(shape[1])[None] if seen is None else np.maximum(np.cumsum(seen, axis=1) - 1, 0)
    places = np.broadcast_to(count[..., None], shape)
    return {**values, "positions": np.ascontiguousarray(places).astype(values["positions"].dtype)}


def _angles_in_bfloat16(a, right, ids, axes_dim, theta):
    return np.asarray(right(ids, axes_dim, theta)).astype(ml_dtypes.bfloat16).astype(np.float64)


def _all_in_turn(sections):
    """Every third frequency is the row's, and every third the column's, to the last."""
    return np.arange(sum(sections)) % 3


# --- an operation that had no case when it was drawn --------------------------------------------------------------


def _reciprocal_of_the_size(case, inputs, y):
    """Pixels are sought by float32 products with H (1 / height)."""
    x, one = inputs["x"].values(), np.float32(1)
    sizes = zip((case.params["height"], case.params["width"]), x.shape[2:], strict=True)
    steps = [(n, np.float32(s) * (one / np.float32(n))) for n, s in sizes]
    rows, columns = ((np.arange(n, dtype=np.float32) * step).astype(int) for n, step in steps)
    return {"y": x[:, :, rows[:, None], columns]}


_TABLE = {
    "nt-op-16": (
        "op",
        "tracel-ai/burn#4686, without a case when it was drawn",
        Injection(
            ("resize_nearest/f32/inexact-*",),
            Bug(answer=_reciprocal_of_the_size),
            "resize_nearest",
            "step|rounded down|each the one before|float32|inexact",
        ),
    ),
    "nt-mod-01": (
        "model",
        "utensils/mold#111, its third",
        _model(
            Bug(patched=_patch(qwen_image, "centred_ids", _from_0)),
            "rope|attn|attention|angle|block",
            "centre|center|from (0|the corner|zero)|corner|position|place",
            "qwen-image/qwen-image/first-step",
            "qwen-image/qwen-image/quiet",
        ),
    ),
    "nt-te-01": (
        "model",
        "ModelTC/LightX2V#1416, ml-explore/mlx-lm#1768",
        _model(
            Bug(inputs=_words_alone),
            "rope|attn|attention|layers|angle",
            "position|place|grid|row|column|number|sequen|as (words|text)|one after",
            "qwen2.5-vl-7b/qwen2_5_vl/image",
            "qwen3-vl-4b/qwen3_vl/image",
            "qwen3-vl-4b/qwen3_vl/pictures",
        ),
    ),
    "nt-te-02": (
        "model",
        "vllm-project/vllm-gaudi#1437",
        _model(
            Bug(patched=_patch(qwen_vl, "interleaved", qwen_vl.in_turn)),
            "rope|attn|attention|layers|angle",
            "in turn|interleav|section|one after|frequenc|axes|axis|order",
            "qwen3-vl-4b/qwen3_vl/image",
            "qwen3-vl-4b/qwen3_vl/pictures",
        ),
    ),
    "nt-te-03": (
        "model",
        "XPU-Forces/mojo_opset#276, what its review finds",
        _model(
            Bug(patched=_patch(qwen_vl, "interleaved", _all_in_turn)),
            "rope|attn|attention|layers|angle",
            "in turn|interleav|section|frequenc|axes|axis|last|to the end",
            "qwen3-vl-4b/qwen3_vl/image",
            "qwen3-vl-4b/qwen3_vl/pictures",
        ),
    ),
    "nt-te-05": (
        "model",
        "huggingface/candle#3410",
        _model(
            wrong_operation(rope_halves=lambda a, right, x, angle: a.rope(x, angle)),
            "rope|attn|layers",
            "pair|neighbour|interleav|halves|adjacent",
            "qwen3-4b/qwen3/whole",
            "qwen3-4b/qwen3/quiet",
        ),
    ),
    "nt-te-06": (
        "model",
        "huggingface/candle#3698, its first",
        _model(
            wrong_operation(rope_angles=_angles_in_bfloat16),
            "rope|attn|layers|angle",
            "bfloat16|bf16|few bits|rounded|precision",
            "gemma2-2b/gemma2/padded",
        ),
    ),
    "nt-te-07": ("model", "huggingface/candle#3698, its second: a window of keys", None),
    "nt-mod-02": ("model", "stepfun-ai/Step1X-Edit#91, a connector", None),
    "nt-mod-03": ("model", "huggingface/diffusers#14246, Cosmos 3", None),
}
NINETEENTH: dict[str, HeldOut] = {
    **NINETEENTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **NINETEENTH_STEPS,
}
