"""A thirteenth fresh set, of blocks and models: from public trackers, drawn before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, wrong_operation
from thirteenth_operations import THIRTEENTH_OPERATIONS
from thirteenth_steps import THIRTEENTH_STEPS

from refsd.models import flux2, qwen_vl, zimage

# --- blocks ------------------------------------------------------------------------------------------------------


def _heads_without_weights(a, right, x, weight, eps=1e-6):
    return right(x, None if np.ndim(x) == 4 else weight, eps)


def _heads_apart_without_weights(a, right, x, weight, eps=1e-6):
    return right(x, np.ones_like(weight) if np.ndim(x) == 4 else weight, eps)


_ATTENTION = flux2.attention


def _text_of_four_ranks(m, q, k, v, angle, own):
    """In single-stream blocks each of four ranks brings the whole text beside its share of the picture."""
    if "linear1" not in m or own is not None:
        return _ATTENTION(m, q, k, v, angle, own)
    J = np.flatnonzero((np.asarray(angle)[0] == 0).all(axis=-1))[1]  # the picture's first token is where word 0 is
    q, k = m.rope(q, angle), m.rope(k, angle)
    k, v = (np.concatenate([*[y[:, :J]] * 4, y[:, J:]], axis=1) for y in (k, v))
    return m.attention(q, k, v).reshape(*q.shape[:2], -1)


# --- models ------------------------------------------------------------------------------------------------------

_CHUNK = 16


def _first_features_in_each_chunk(x, places, deepstack):
    """The prompt is run in chunks; each takes the pictures' features from the first on."""
    nothing = np.zeros(x.shape, x.dtype)

    def added(features):
        cuts = range(_CHUNK, x.shape[1], _CHUNK)
        chunks = zip(np.split(nothing, cuts, axis=1), np.split(places, cuts, axis=1), strict=True)
        return np.concatenate([qwen_vl.with_pictures(y, own, features[: own.sum()]) for y, own in chunks], axis=1)

    return tuple(added(features) for features in (() if deepstack is None else deepstack))


def _without(name):
    return lambda inputs: {key: value for key, value in inputs.items() if key != name}


_TABLE = {
    "th-blk-01": (
        "block",
        "lucidrains/x-transformers#352",
        _model(
            wrong_operation(rms_norm=_heads_without_weights, rms_norm_apart=_heads_apart_without_weights),
            "ln_q|ln_k|norm|attn|attention",
            "weight|scale|gamma|multipl|learned",
            "sd35-medium/mmdit/first-step",
            "sd35-large/mmdit/last-step",
        ),
    ),
    "th-blk-02": (
        "block",
        "vllm-project/vllm-omni#5121",
        _model(
            Bug(patched=_patch(flux2, "attention", _text_of_four_ranks)),
            "single_blocks|attention|linear2",
            "copies|repeat|(several|four|4) times|more than once|duplicat|keys of the text|text.*(keys|again)",
            "flux2-klein/flux2/between",
            "flux2-dev/flux2/first-step",
        ),
    ),
    "th-te-01": (
        "model",
        "Blaizzy/mlx-vlm#1332",
        _model(
            Bug(patched=_patch(qwen_vl, "features_in_places", _first_features_in_each_chunk)),
            "layers|deepstack|add",
            "[Dd]eep[Ss]tack|features|chunk",
            "qwen3-vl-4b/qwen3_vl/pictures",
        ),
    ),
    "th-te-02": (
        "model",
        "huggingface/optimum-executorch#230",
        _model(
            Bug(inputs=_without("attention_mask")),
            "attention|Attention|mask|block",
            "mask|padding",
            "t5xxl/t5/padded",
            "umt5/t5/padded",
        ),
    ),
    "th-te-03": (
        "model",
        "1bit-MONSTER/1bit-MONSTER#1798",
        _model(
            Bug(inputs=_without("positions")),
            "attn|attention|rope|angle|layers",
            "position|axes|row|column|mrope|number of (each|the) token|token.s number|in turn",
            "qwen3-vl-4b/qwen3_vl/image",
            "qwen2.5-vl-7b/qwen2_5_vl/image",
        ),
    ),
    "th-vae-01": (
        "model",
        "huggingface/diffusers#4676",
        _model(
            Bug(inputs=lambda inputs: {**inputs, "x": 2 * inputs["x"] - 1}),
            r"encoder|conv|\b0\b|\bx\b|input",
            r"-1|0 ?\.\. ?1|0 to 1|range|pixels",
            "taesd/tae-encoder/*",
        ),
    ),
    "th-mod-01": (
        "model",
        "NVIDIA/TensorRT-Model-Connect#386",
        _model(
            Bug(patched=_patch(zimage, "own_tokens", lambda padded, pictures=0: None)),
            "attention|layers|context_refiner|mask",
            "mask|padding|unused|hidden",
            "zimage/zimage/masked",
        ),
    ),
}
THIRTEENTH: dict[str, HeldOut] = {
    **THIRTEENTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **THIRTEENTH_STEPS,
}
