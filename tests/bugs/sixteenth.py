"""A sixteenth fresh set, of blocks and models: from public trackers, drawn before a look at the judge."""

import contextlib
from unittest.mock import patch

import numpy as np
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, wrong_operation
from sixteenth_operations import SIXTEENTH_OPERATIONS
from sixteenth_steps import SIXTEENTH_STEPS

from refsd.models import language_model, ltx2, qwen3_vision
from refsd.module import Module, block

# --- blocks ------------------------------------------------------------------------------------------------------


def _causal(a, right, q, k, v, scale=None, mask=None, *rest, **named):
    return right(q, k, v, scale, mask, 0)


_WORDS = {22: 7, 13: 5}  # tokens of a case -> its text's


def _keys_do_not_go_round(a, right, q, k, v, *rest, **named):
    """Two ranks have the text and half of the picture each, and see no more. The text's answer is rank 0's."""
    L = q.shape[1]
    J = _WORDS[L]
    cut = J + -(-(L - J) // 2)
    seen = np.arange(cut), np.r_[:J, cut:L]
    y = np.empty((*q.shape[:3], v.shape[3]), np.float32)
    for rows, keys in zip((np.arange(cut), np.arange(cut, L)), seen, strict=True):
        own = (np.ascontiguousarray(t) for t in (q[:, rows], k[:, keys], v[:, keys]))
        y[:, rows] = right(*own, *rest, **named)
    return y


def _each_rank_its_half(a, right, x, weight, eps=1e-6):
    """The norm over all heads runs on each of two ranks by itself."""
    half = x.shape[-1] // 2
    parts = (slice(None, half), slice(half, None))
    return np.concatenate([right(np.ascontiguousarray(x[..., p]), weight[p], eps) for p in parts], axis=-1)


@block
def _summed_over_whole_ranks(m, x):
    """Two ranks hold the whole MLP, and their answers are added up."""
    y = m.linear("down_proj", m.multiply(m.silu(m.linear("gate_proj", x)), m.linear("up_proj", x)))
    return 2 * y


# --- models ------------------------------------------------------------------------------------------------------

_IDS = []


def _ids_noted(values):
    _IDS[:] = [values["input_ids"]]
    return values


def _padding_masked(a, right, q, k, v, scale=None, mask=None, *rest, **named):
    """What follows the end of the prompt is hidden."""
    ids = _IDS[0]
    ended = np.arange(ids.shape[1]) > np.argmax(ids == 7, axis=1)[:, None]
    return right(q, k, v, scale, mask + np.where(ended, -np.inf, 0)[:, None, None], *rest, **named)


def _nothing_at_padding(case, inputs, y):
    seen = inputs["attention_mask"].values() != 0
    return {name: state * seen[..., None] for name, state in y.items()}


_BETWEEN, _CROSS_TIMES = ltx2.between, ltx2.cross_times


@contextlib.contextmanager
def _other_times():
    """Scale and shift are made of the other stream's time; the gates of a time not multiplied by 1000."""
    known = []

    def between(*times):
        known[:] = _BETWEEN(*times)
        return tuple(known)

    def cross_times(m, name, gate, t, gate_scale):
        (other,) = [one for one in known if one is not t]
        scale = ltx2.adaln_single(m[name], other)[0]
        gates = ltx2.adaln_single(m[gate], t * (gate_scale / 1000))[0]
        return np.concatenate([scale, gates], axis=2)

    with patch.object(ltx2, "between", between), patch.object(ltx2, "cross_times", cross_times):
        yield


_LAYER_NORM = Module.layer_norm


def _no_last_norm(self, name, x, *rest, **named):
    return x if name == "post_layernorm" else _LAYER_NORM(self, name, x, *rest, **named)


def _no_places(m, at, high, wide):
    return np.zeros((len(at), m.shape("pos_embed.weight")[1]), m.arithmetic.numerics.storage_dtype)


_TABLE = {
    "xv-blk-01": (
        "block",
        "ByteDance-Seed/VeOmni#74",
        _model(
            wrong_operation(attention=_causal),
            "attn|attention|double_blocks|single_blocks",
            "causal|later (keys|tokens)|keys? (behind|after|beyond)|earlier|0\\.\\.l",
            "flux-dev/flux/first-step",
            "flux-dev/flux/quiet",
        ),
    ),
    "xv-blk-02": (
        "block",
        "sgl-project/sglang#33353",
        _model(
            wrong_operation(attention=_keys_do_not_go_round),
            "attn|attention",
            "own (part|half|share)|half|halves|rank|device|part of the (keys|tokens|picture)|local|share",
            "qwen-image/qwen-image/first-step",
            "qwen-image/qwen-image/quiet",
        ),
    ),
    "xv-blk-03": (
        "block",
        "sgl-project/sglang#16720",
        _model(
            wrong_operation(rms_norm_apart=_each_rank_its_half),
            "norm|attn",
            "half|halves|rank|device|part of|own (part|half|share)|each (head|group)|groups? of|two parts",
            "wan/wan/frames",
            "wan/wan/picture",
        ),
    ),
    "xv-blk-04": (
        "block",
        "lightseekorg/tokenspeed#80",
        _model(
            Bug(patched=_patch(language_model, "mlp", _summed_over_whole_ranks)),
            "mlp|layers|down_proj",
            "twice|double|(two|2) times|times (two|2)",
            "qwen3-4b/qwen3/whole",
            "qwen3-4b/qwen3/quiet",
        ),
    ),
    "xv-te-01": (
        "model",
        "mosaicml/diffusion#147",
        _model(
            wrong_operation(attention=_padding_masked)._replace(inputs=_ids_noted),
            "attn|attention|layers|hidden",
            "padding|hidden|mask|end of|eos|after the (end|prompt)|keys are not summed",
            "sd15/clip/ended",
            "clip-l/clip/ended",
        ),
    ),
    "xv-te-02": (
        "model",
        "modular/modular#6153",
        _model(
            Bug(answer=_nothing_at_padding),
            "hidden|penultimate|token|state|norm",
            "padding|zero|masked|\\b0\\b|empty",
            "qwen3-4b/qwen3/padded",
        ),
    ),
    "xv-te-03": (
        "model",
        "NVIDIA/TensorRT-LLM#11065",
        _model(
            Bug(patched=_patch(qwen3_vision, "positions", _no_places)),
            "pos|patch_embed|add|embed",
            "position|place|pos_embed.*|left out|not added|missing|never",
            "qwen3-vl-8b-vision/qwen3_vision/wide",
            "qwen3-vl-8b-vision/qwen3_vision/quiet",
        ),
    ),
    "xv-te-04": (
        "model",
        "vllm-project/vllm#8155",
        _model(
            Bug(patched=_patch(Module, "layer_norm", _no_last_norm)),
            "post_layernorm|projection|embeds|pooled",
            "norm.*(left out|not|missing|skipped|without)|(without|no|left out|skipped).*norm|not normalised",
            "clip-vision-h/clip-vision/square",
        ),
    ),
    "xv-mod-01": (
        "model",
        "Comfy-Org/ComfyUI#14097",
        _model(
            Bug(patched=_other_times),
            "av_ca|cross|adaln|gate|a2v|v2a",
            "other|exchanged|swapped|own time|sound|audio|video|1000|time",
            "ltx2/ltx2/video",
            "ltx2/ltx2/quiet",
            "ltx23/ltx2/video",
        ),
    ),
    "xv-mod-02": (
        "model",
        "dgrauet/ltx-2-mlx#37",
        _model(
            Bug(params=lambda params: {**params, "gate_scale": 0.001}),
            "gate|av_ca|a2v|v2a",
            r"gate.*(0\.001|1000|1 / 1000|scale|factor|time)|0\.001|1000|gate_scale",
            "ltx2/ltx2/video",
            "ltx2/ltx2/quiet",
            "ltx23/ltx2/video",
        ),
    ),
    "xv-te-05": ("model", "huggingface/transformers#45330, positions made of ids and grids", None),
    "xv-te-06": ("model", "huggingface/text-generation-inference#2455, SigLIP without its last norm", None),
    "xv-mod-03": ("model", "vllm-project/vllm-omni#4474, angles of hidden words", None),
    "xv-mod-04": ("model", "huggingface/diffusers#10065, a ControlNet of SD 3.5", None),
    "xv-mod-05": ("model", "huggingface/diffusers#12538, heads that 6 does not divide as 3 does", None),
}
SIXTEENTH: dict[str, HeldOut] = {
    **SIXTEENTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **SIXTEENTH_STEPS,
}
