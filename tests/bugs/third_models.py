"""A third fresh set, of blocks and models: drawn from public trackers on 2026-11-23."""

from functools import wraps

import numpy as np
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, Injection, wrong_operation

from refsd.kernels.attention_softcap import attention_softcap
from refsd.models import gemma2, qwen_vl


def _sections_in_turn(sections):
    """Qwen3-VL's frequencies turn by time, then by row, then by column, as Qwen2.5-VL's do."""
    return qwen_vl.in_turn(sections)


@wraps(attention_softcap)
def _capped_behind_the_mask(q, k, v, scale, cap, mask=None):
    """cap tanh((scores + mask) / cap): a hidden key's score is -cap."""
    groups = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, groups, axis=2), np.repeat(v, groups, axis=2)
    scores = np.einsum("blhd,bjhd->bhlj", q, k) * scale + (0 if mask is None else mask)
    e = np.exp(cap * np.tanh(scores / cap))
    return np.einsum("bhlj,bjhe->blhe", e / e.sum(-1, keepdims=True), v).astype(q.dtype)


@wraps(attention_softcap)
def _without_a_cap(q, k, v, scale, cap, mask=None):
    return attention_softcap(q, k, v, scale, 1e6, mask)


@wraps(attention_softcap)
def _scale_of_the_width(q, k, v, scale, cap, mask=None):
    """1 / sqrt(width / heads) for 1 / sqrt(head's channels); Gemma 2 2B: 2304 / 8."""
    return attention_softcap(q, k, v, 288**-0.5, cap, mask)


_NORM = gemma2.norm


def _last_weight_as_stored(m, name, x, eps):
    """Of the last norm the weight is taken as it is stored, without 1."""
    y = _NORM(m, name, x, eps)
    weight = m.weight(f"{name}.weight")
    return (y / (1 + weight) * weight).astype(y.dtype) if name == "norm" else y


def _padded_before(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), *rest):
    """A picture that is halved is padded above and on the left: it moves down and to the right."""
    return right(x, weight, bias, stride, (1, 0, 1, 0) if tuple(padding) == (0, 1, 0, 1) else padding, *rest)


_TABLE: dict[str, tuple[str, str, Injection]] = {
    "t-mod-01": (
        "block",
        "alibaba/MNN#4133",
        _model(
            Bug(patched=_patch(qwen_vl, "interleaved", _sections_in_turn)),
            "rope|angle|attn",
            "section|interleav|axis|axes|row|column|position",
            "qwen3-vl-4b/qwen3_vl/image",
        ),
    ),
    "t-mod-02": (
        "block",
        "onnx/onnx#7867",
        _model(
            Bug(patched=_patch(gemma2, "attention_softcap", _capped_behind_the_mask)),
            "attn|attention",
            r"cap|limited|limit|mask.*(before|in the tanh|hides)|mask",
            "gemma2-2b/gemma2/padded",
        ),
    ),
    "t-mod-03": (
        "model",
        "kekzl/imp#688",
        _model(
            Bug(patched=_patch(gemma2, "attention_softcap", _without_a_cap)),
            "attn|attention",
            "cap|limit|tanh",
            "gemma2-2b/gemma2/padded",
        ),
    ),
    "t-mod-04": (
        "model",
        "ggml-org/llama.cpp#8197",
        _model(
            Bug(patched=_patch(gemma2, "attention_softcap", _scale_of_the_width)),
            "attn|attention",
            "scale|sqrt",
            "gemma2-2b/gemma2/padded",
        ),
    ),
    "t-mod-05": (
        "model",
        "kekzl/imp#1289",
        _model(
            Bug(patched=_patch(gemma2, "norm", _last_weight_as_stored)),
            "norm",
            r"1 \+|without (the )?1|1 is|lacks|weight",
            "gemma2-2b/gemma2/padded",
        ),
    ),
    "t-mod-06": (
        "model",
        "FizzleDorf/AIT#4, cause of the symptom assumed",
        _model(wrong_operation(conv2d=_padded_before), "downsample|conv", "pad|moved|shift", "sd15/vae-encoder/*"),
    ),
}
THIRD_MODELS = {id: HeldOut(*row) for id, row in _TABLE.items()}
