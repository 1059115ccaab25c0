"""An eighth fresh set, of blocks, models and files: from public trackers, drawn before a look at the judge.

The known bugs of two pages, of tiles and of NVFP4's product, came into view after the bugs there had been chosen.
"""

import functools

import numpy as np
from eighth_operations import EIGHTH_OPERATIONS
from eighth_steps import EIGHTH_STEPS
from held_out import HeldOut
from injected_models import _model, _patch
from injection import Bug, wrong_operation

from refsd.kernels.attention_softcap import attention_softcap
from refsd.models import flux2, gemma2, t5, vae_wan, zimage
from refsd.models.zimage import modulation
from refsd.numerics.tensor import stored

# --- blocks ------------------------------------------------------------------------------------------------------


def _cut_over_two_devices(m, c):
    """Each device has half of scales and gates, and cuts its half into the four parts."""
    y = modulation(m, c)
    halves = [np.split(half, 4, axis=-1) for half in np.split(y, 2, axis=-1)]
    return np.concatenate([np.concatenate(parts, axis=-1) for parts in zip(*halves, strict=True)], axis=-1)


@functools.wraps(attention_softcap)
def _mask_by_head(q, k, v, scale, cap, mask=None):
    """Scores are [items, heads of keys, queries of each, L, J]: a mask [items, 1, L, J] meets the heads."""
    if mask is not None and mask.shape[0] > 1:
        G = k.shape[2]
        own = mask[np.arange(G) % mask.shape[0], 0]
        mask = np.repeat(own, q.shape[2] // G, axis=0)[None]
    return attention_softcap(q, k, v, scale, cap, mask)


def _usual_scale(a, right, q, k, v, scale=None, *rest, **named):
    return right(q, k, v, None, *rest, **named)


def _gates_cut_over_two_devices(a, right, x, second_gates=False):
    """Each device has half of gates and values together: one gates its gates, the other its values."""
    parts = np.split(np.asarray(x), 2, axis=-1)
    return np.concatenate([right(np.ascontiguousarray(part), second_gates) for part in parts], axis=-1)


# --- models ------------------------------------------------------------------------------------------------------


def _words_at_zero(J):
    return np.zeros((J, 4), np.int64)


def _a_layer_late(case, inputs, y):
    """Layers are counted without the embeddings: the state after the next layer."""
    return {**y, "penultimate": y["last_hidden_state"]}


def _frames_not_halved(m, x):
    """The picture is halved, the convolution over frames left out."""
    return vae_wan.video(m.conv2d("resample.1", vae_wan.pictures(x), stride=2, padding=(0, 1, 0, 1)), len(x))


def _ones_and_zeros(seen, dtype):
    return np.asarray(seen).astype(dtype)


# --- files -------------------------------------------------------------------------------------------------------


def _of_names(change, end):
    """change: values of a tensor -> those that the engine has; of tensors whose names end so."""
    return lambda weights: {
        name: stored(np.ascontiguousarray(change(t.values()))) if name.endswith(end) else t
        for name, t in weights.items()
    }


def _halves_exchanged(y):
    return np.roll(y, len(y) // 2, axis=0)


def _rows_by_device(y):
    """q, k and v of all heads one behind the other, cut in two: each device takes thirds of its half."""
    thirds = [np.split(half, 3) for half in np.split(y, 2)]
    return np.concatenate([np.concatenate(parts) for parts in zip(*thirds, strict=True)])


_TABLE = {
    "b-blk-01": (
        "block",
        "tenstorrent/tt-forge-models#783",
        _model(
            Bug(patched=_patch(zimage, "modulation", _cut_over_two_devices)),
            "adaLN_modulation|layers|noise_refiner|attention_norm1|qkv",
            "order|scale|gate|modulation|permut|slices|parts",
            "zimage/zimage/whole",
            "zimage/zimage/masked",
        ),
    ),
    "b-blk-02": (
        "block",
        "ml-explore/mlx-lm#1903",
        _model(
            Bug(patched=_patch(gemma2, "attention_softcap", _mask_by_head)),
            "self_attn|attention",
            "mask.*(head|item|axis|broadcast)|another item|items|item's mask",
            "gemma2-2b/gemma2/padded",
        ),
    ),
    "b-blk-03": (
        "block",
        "huggingface/optimum-intel#1877, in T5",
        _model(
            wrong_operation(attention=_usual_scale),
            "attention|SelfAttention",
            r"scale|1/sqrt|head_dim",
            "t5xxl/t5/*",
        ),
    ),
    "b-blk-04": (
        "block",
        "huggingface/diffusers#13718, review",
        _model(
            wrong_operation(swiglu=_gates_cut_over_two_devices),
            "swiglu|mlp|linear2",
            "half|halves|order|gate|interleav|slices|part",
            "flux2-klein/flux2/between",
            "flux2-dev/flux2/first-step",
        ),
    ),
    "b-mod-01": (
        "model",
        "invoke-ai/InvokeAI#9189",
        _model(
            Bug(params=lambda params: {**params, "rope_scale": [1.0, 3.0, 3.0]}),
            "rope|self_attn|attn",
            r"rope_scale|theta|frequenc|rotary|rope",
            "anima/anima/whole",
        ),
    ),
    "b-mod-02": (
        "model",
        "NVIDIA/TensorRT-Model-Connect#799, of positions",
        _model(
            Bug(patched=_patch(flux2, "text_ids", _words_at_zero)),
            "rope|attn|double_blocks",
            "text|word|position|txt|first tokens|ids, axis A: the last slice",
            "flux2-dev/flux2/first-step",
            "flux2-klein/flux2/between",
        ),
    ),
    "b-mod-03": (
        "model",
        "NVIDIA/TensorRT-Model-Connect#801, of layers",
        _model(
            Bug(answer=_a_layer_late),
            "penultimate",
            r"last_hidden_state|layer|model\.norm",
            "mistral-small/mistral/padded",
        ),
    ),
    "b-vae-02": (
        "model",
        "tenstorrent/tt-metal#47856, review",
        _model(
            Bug(patched=_patch(vae_wan, "downsample", _frames_not_halved)),
            "downsample|time_conv|resample|mean|logvar|shape",
            "time_conv|frames",
            "wan-vae/wan-vae-encoder/frames",
        ),
    ),
    "b-te-02": (
        "model",
        "NVIDIA/TensorRT-Model-Connect#472, of T5's mask",
        _model(
            Bug(patched=_patch(t5, "boolean_mask", _ones_and_zeros)),
            "attention|SelfAttention",
            "mask",
            "t5xxl/t5/padded",
        ),
    ),
    "b-ld-01": (
        "loader",
        "huggingface/diffusers#14410, in FLUX.2's MLPs",
        _model(
            Bug(weights=_of_names(_halves_exchanged, "mlp.0.weight")),
            r"mlp\.0|mlp",
            "swap|exchang|halves|order|rolled|gate|chunk",
            "flux2-klein/flux2/between",
        ),
    ),
    "b-ld-02": (
        "loader",
        "vllm-project/vllm#42803, in FLUX",
        _model(
            Bug(
                weights=lambda w: _of_names(_rows_by_device, "qkv.bias")(
                    _of_names(_rows_by_device, "qkv.weight")(w)
                )
            ),
            "qkv",
            "order|permut|rows|slices|swap|exchang",
            "flux-dev/flux/first-step",
        ),
    ),
}
EIGHTH: dict[str, HeldOut] = {
    **EIGHTH_OPERATIONS,
    **{id: HeldOut(*row) for id, row in _TABLE.items()},
    **EIGHTH_STEPS,
}
