"""Bugs inside whole models: a wrong operation in some calls, wrong weights or inputs, or a changed function."""

import contextlib
from types import SimpleNamespace
from unittest.mock import patch

import ml_dtypes
import numpy as np
from injection import Bug, Injection, wrong_operation

from refsd.models import clip, t5, unet
from refsd.models.unet import component as components_unet
from refsd.numerics.tensor import stored


def _model(bug: Bug, place: str, cause: str, *cases: str) -> Injection:
    return Injection(cases, bug, place, cause)


def _patch(target, name, wrong):
    return lambda: patch.object(target, name, wrong)


# --- attention ---------------------------------------------------------------------------------------------------


def _values_by_channel(a, right, q, k, v, *rest, **named):
    """One head of all pixels: v as [C, H W] lies in memory, read as [H W, C]."""
    if q.shape[2] == 1:
        v = np.ascontiguousarray(v[:, :, 0].swapaxes(1, 2)).reshape(v.shape)
    return right(q, k, v, *rest, **named)


def _self_mask_on_text(a, right, q, k, v, scale=None, mask=None, *rest, **named):
    """The mask of the pixels, cut to the number of tokens, hides the last three of them."""
    if k.shape[1] != q.shape[1] and k.shape[1] > 3:
        hidden = np.zeros((1, 1, 1, k.shape[1]))
        hidden[..., -3:] = -np.inf
        mask = hidden
    return right(q, k, v, scale, mask, *rest, **named)


def _angles_of_heads(a, right, x, angle):
    """Cosines and sines stand at the axis of heads: head h is turned as token h."""
    H = x.shape[2]
    if angle.shape[1] < H:
        return right(x, angle)
    y = np.asarray(x, np.float64)
    own = np.asarray(angle)[:, :H][:, None]
    one, two = y[..., ::2], y[..., 1::2]
    turned = one * np.cos(own) - two * np.sin(own), one * np.sin(own) + two * np.cos(own)
    return np.stack(turned, axis=-1).reshape(x.shape)


# --- UNet and autoencoder ----------------------------------------------------------------------------------------


def _pads_evenly(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), *rest):
    return right(x, weight, bias, stride, (1, 1, 1, 1) if tuple(padding) == (0, 1, 0, 1) else padding, *rest)


class _Reversing(SimpleNamespace):
    """numpy, whose concatenate takes its parts from the last to the first."""

    def __getattr__(self, name):
        return getattr(np, name)

    @staticmethod
    def concatenate(parts, axis=0):
        return np.concatenate(list(parts)[::-1], axis=axis)


@contextlib.contextmanager
def _skip_first():
    """unet's page joins h and a skip by Arithmetic.concat, or by numpy."""
    with patch.object(unet, "np", _Reversing()):
        yield


_CONTROLNET = components_unet.controlnet


def _reused(*arguments, **named):
    """What a first call added in place to the skips is there at the second."""
    *skips, middle = _CONTROLNET(*arguments, **named)
    return [skip + skip for skip in skips] + [middle]


# --- text encoders -----------------------------------------------------------------------------------------------


def _one_direction(relative_position, num_buckets, max_distance):
    """A decoder's buckets: all for keys before the query, the distance 0 for those after it."""
    distance = np.maximum(-np.asarray(relative_position), 0)
    exact = num_buckets // 2
    with np.errstate(divide="ignore"):
        more = np.log(np.maximum(distance, 1) / exact) / np.log(max_distance / exact) * (num_buckets - exact)
    return np.where(distance < exact, distance, np.minimum(exact + np.floor(more), num_buckets - 1).astype(int))


_CLIP_TEXT = clip.clip_text


def _pooled_before_the_last(m, input_ids, *rest, **named):
    hidden, penultimate, _ = _CLIP_TEXT(m, input_ids, *rest, **named)
    eos = named.get("eos", rest[3] if len(rest) > 3 else 49407)
    normed = m["text_model"].layer_norm("final_layer_norm", penultimate)
    return hidden, penultimate, normed[np.arange(len(normed)), np.argmax(np.asarray(input_ids) == eos, axis=1)]


def _legacy_end(input_ids, eos):
    """The first of the largest id: where added tokens have ids above that of the end."""
    ids = np.asarray(input_ids)
    return np.array([int(np.flatnonzero(row == row.max())[0]) for row in ids])


def _table_in_bfloat16(weights):
    return {
        **weights,
        **{
            name: stored(weights[name].values().astype(ml_dtypes.bfloat16).astype(np.float32))
            for name in weights
            if name.startswith(("shared", "embed_tokens"))
        },
    }


def _half(x):
    with np.errstate(over="ignore"):
        return np.asarray(x).astype(np.float16).astype(np.float32)


def _in_half(keys: tuple[str, ...]):
    """A product in float16: inputs, weights and result. Which layer it is, is told by its weights."""

    def patched():
        from refsd.module import Module

        right = Module.linear

        def linear(self, name, x):
            if not any(key in f"{self.prefix}{name}" for key in keys):
                return right(self, name, x)
            weight, bias = self.weight(f"{name}.weight"), self._bias(name)
            y = _half(_half(x) @ _half(weight).T + (0 if bias is None else _half(bias)))
            return self._tap(name, y.astype(self.arithmetic.numerics.storage_dtype))

        return patch.object(Module, "linear", linear)

    return patched


def _without(name):
    return lambda inputs: {key: value for key, value in inputs.items() if key != name}


def _swapped(one, other):
    return lambda case, inputs, y: {**y, one: y[other], other: y[one]}


def _memory_of_other_axes(case, inputs, y):
    """[W, H, T, C] of a film on [W, H, C]: channels and the axis before them change places."""
    (name, x), *_ = y.items()
    N, C, H, W = x.shape
    return {name: np.ascontiguousarray(x.swapaxes(1, 2)).reshape(N, C, H, W)}


_TEXT_MLP = ("txt_mlp", "context_block.mlp")
MODELS: dict[str, Injection] = {
    "att-05": _model(
        wrong_operation(attention=_values_by_channel),
        r"mid\.attn_1",
        "values|v .*(transposed|axes|memory)",
        "sd15/vae-decoder/wide",
        "flux-vae/vae-decoder/wide",
    ),
    "att-10": _model(
        wrong_operation(attention=_self_mask_on_text),
        r"attn2",
        "mask|last .*keys",
        "sd15/unet/between",
        "sdxl/unet/between",
    ),
    "att-13": _model(
        wrong_operation(rope=_angles_of_heads), r"rope|attention|attn", "head", "flux-dev/flux/between", "rope/*"
    ),
    "conv-07": _model(
        wrong_operation(conv2d=_pads_evenly),
        r"downsample",
        "both sides|other side",  # the same numbers where sides are even
        "sd15/vae-encoder/tall",
        "conv2d/*/vae-down*",
    ),
    "gen-02": _model(
        Bug(params=lambda p: {**p, "num_heads": [8] * 3}), r"attn|transformer_blocks", "heads", "sdxl/unet/between"
    ),
    "cn-02": _model(
        Bug(patched=_patch(components_unet, "controlnet", _reused)),
        r"control|skip|output_blocks|concat|add",
        "twice",
        "lone/sd15-control/unet/*",
    ),
    "gen-05": _model(
        Bug(patched=_patch(t5, "relative_position_bucket", _one_direction)),
        r"relative_attention_bias",
        "direction|distance",
        "t5xxl/t5/*",
    ),
    "gen-07": _model(
        Bug(patched=_patch(clip, "clip_text", _pooled_before_the_last)),
        r"pooled|text_projection|final_layer_norm",
        "last layer|penultimate",
        "clip-g/clip_g/*",
    ),
    "gen-11": _model(Bug(patched=_skip_first), r"output_blocks\.0|concat", "b first|skip", "sd15/unet/between"),
    "gen-12": _model(
        Bug(answer=_swapped("mean", "logvar")),
        "mean",
        "mean and logvar",
        "sd15/vae-encoder/*",
        "flux-vae/vae-encoder/*",
    ),
    "q-14": _model(
        Bug(patched=_in_half(_TEXT_MLP)),
        r"txt_mlp|context_block\.mlp",
        "float16|f16",
        "flux-dev/flux/between",
        "sd3-medium/mmdit/between",
    ),
    "te-07": _model(Bug(weights=_table_in_bfloat16), r"shared|embed", "bfloat16|bf16", "t5xxl/t5/*"),
    "te-08": _model(
        Bug(patched=_patch(clip, "end_of_prompt", _legacy_end)),
        "pooled|text_projection",
        "largest id",
        "sd15/clip/ended",
        "clip-g/clip_g/ended",
    ),
    "te-12": _model(Bug(inputs=_without("context_mask")), r"attention|attn|mask", "mask", "chroma/chroma/masked"),
    "te-18": _model(Bug(patched=_in_half(("wo",))), r"wo", "float16|f16", "t5xxl/t5/*"),
    "vae-05": _model(
        Bug(inputs=lambda v: {**v, "x": 2 * v["x"] - 1}),
        r"\b0\b|latent|out|z",
        "-1..1",
        "taesd/tae-encoder/odd",
        "tae/taef1/encoder",
    ),
    "vae-17": _model(
        Bug(answer=_memory_of_other_axes),
        r"out|x",
        "axes|channels|axis",
        "taesd/tae-decoder/outliers",
        "taef1/tae-decoder/wide",
    ),
}
