"""Bugs of models and latents that the judge's known bugs were not written from, each with its source."""

import contextlib
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
from held_out_sources import sourced
from injected_models import _model, _patch
from injected_operations import _gelu
from injection import Bug, Injection, wrong_operation, wrong_parts

from refsd.models import esrgan, flux, mmdit, t5, taesd, zimage
from refsd.module import Module
from refsd.stages.latents import RULE

# --- operations in their models ----------------------------------------------------------------------------------


def _no_scale_is_one_over_root(a, right, q, k, v, scale=None, *rest, **named):
    """mlx-examples 1013: a fused attention scales; T5's does not."""
    return right(q, k, v, q.shape[-1] ** -0.5 if scale == 1.0 else scale, *rest, **named)


def _unscaled(a, right, q, k, v, scale=None, *rest, **named):
    return right(q, k, v, 1.0, *rest, **named)


def _not_causal(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """sglang 14364: the text encoder of CLIP sees what comes later."""
    causal = mask is not None and np.shape(mask)[-2:] == (q.shape[1], q.shape[1])
    return right(q, k, v, scale, None if causal else mask, None, sinks)


def _theta_of_1000(a, right, ids, axes_dim, theta):
    return right(ids, axes_dim, 1000.0)


def _group_eps(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    return right(x, weight, bias, num_groups, 1e-5)


def _layer_eps(a, right, x, weight=None, bias=None, eps=1e-5):
    return right(x, weight, bias, 1e-7)


def _first_time(a, right, t, *rest, **named):
    return right(np.full_like(t, np.asarray(t).ravel()[0]), *rest, **named)


def _time_over_1000(a, right, t, *rest, **named):
    return right(np.asarray(t) / 1000, *rest, **named)


def _transposed(a, right, x, weight, kind):
    return right(x, np.ascontiguousarray(weight.T) if weight.shape[0] == weight.shape[1] else weight, kind)


# --- functions of models -----------------------------------------------------------------------------------------

_RIGHT_ROTARY = flux.rotary_attention


def _q_from_k(m, q, k, v, angle, mask=None):
    """ColossalAI 6429: the second of each pair of the turned q comes from k."""
    N, L, _, _ = q.shape
    q2, k2 = m.rope(q, angle), m.rope(k, angle)
    mixed = np.array(q2)
    mixed[..., 1::2] = k2[..., 1::2]
    return m.attention(mixed, k2, v, mask=mask).reshape(N, L, -1)


def _shift_for_scale(m: Module, x, vec):
    shift, scale = np.split(m.linear("adaLN_modulation.1", m.silu(vec)), 2, axis=-1)
    return m.linear("linear", m.modulate(flux.norm(m, x), scale, shift))


class _Joining(SimpleNamespace):
    """numpy, whose concatenate along the last axis takes its parts in the other order."""

    def __getattr__(self, name):
        return getattr(np, name)

    @staticmethod
    def concatenate(parts, axis=0):
        return np.concatenate(list(parts)[::-1] if axis == -1 else list(parts), axis=axis)


def _no_qk_norm(m, x, head_dim):
    N, L, _ = x.shape
    return tuple(m.linear("qkv", x).reshape(N, L, 3, -1, head_dim).transpose(2, 0, 1, 3, 4))


def tanh(x):
    return x


def _top_left(rows, height, width):
    size = round(len(rows) ** 0.5)
    return np.asarray(rows).reshape(size, size, -1)[:height, :width].reshape(height * width, -1)


_T5_BLOCK = t5.t5_block


def _bias_once(m, x, bias, *more):
    return _T5_BLOCK(m, x, bias if m.prefix.endswith("block.0.") else np.zeros_like(bias), *more)


_COUNT = Module.count


def _one_block(self, name=""):
    return min(_COUNT(self, name), 1) if name == "body" else _COUNT(self, name)


def _outer_not_scaled(m, x):
    h = x
    for i in (1, 2, 3):
        h = esrgan.dense_block(m[f"rdb{i}"], h)
    return m.add(h, x)


def pixel_unshuffle(x, factor):
    N, C, H, W = x.shape
    cells = x.reshape(N, C, H // factor, factor, W // factor, factor)
    return np.ascontiguousarray(np.einsum("nchawb->nabchw", cells)).reshape(N, -1, H // factor, W // factor)


def leaky_relu(x, slope=0.2):
    return np.where(x < 0, 0.01 * x, x)


def _values_not_projected():
    right = Module.conv2d

    def conv2d(self, name, x, *rest, **named):
        return x if name == "v" and self.prefix.endswith("attn_1.") else right(self, name, x, *rest, **named)

    return patch.object(Module, "conv2d", conv2d)


@contextlib.contextmanager
def _joined_the_other_way():
    with patch.object(flux, "np", _Joining()):
        yield


def _other_scale(change):
    def scale(family, kind):
        right = RULE.scale(family, kind)
        return right if right is None else change(right, family)

    return scale


def _shift_before(right, family):
    """Decoding: (z - shift) / scale for z / scale + shift."""
    cls = type("Before", (type(right),), {"to_vae": lambda self, x: (x - self.shift) / self.factor})
    return cls(*right)


def _of_sd15(right, family):
    """diffusers 6923: 0.18215 for SDXL's 0.13025."""
    return right._replace(factor=0.18215) if family == "sdxl" else right


_TABLE: dict[str, Injection] = {
    "u-act-02": _model(
        wrong_operation(quick_gelu=lambda a, right, x: _gelu(x)), "quick_gelu", "erf|exact|GELU", "sd15/clip/long"
    ),
    "u-att-03": _model(
        wrong_operation(attention=_not_causal),
        "attention|self_attn",
        "causal|mask|later",
        "sd15/clip/*",
        "clip-g/*",
    ),
    "u-att-07": _model(
        wrong_operation(attention=_no_scale_is_one_over_root), "attention|SelfAttention", "scale", "t5xxl/t5/*"
    ),
    "u-norm-05": _model(wrong_operation(layer_norm=_layer_eps), "norm", "eps", "clip-g/clip_g/*"),
    "u-norm-10": _model(
        Bug(patched=_patch(flux, "final_layer", _shift_for_scale)),
        "final_layer",
        "shift and scale|scale and shift|swap",
        "flux-dev/flux/between",
    ),
    "u-rope-01": _model(
        Bug(patched=_patch(flux, "rotary_attention", _q_from_k)),
        "rope|attention|attn|blocks",
        "\\bk\\b|keys|q and k",
        "flux-dev/flux/between",
    ),
    "u-rope-05": _model(
        wrong_operation(rope_angles=_theta_of_1000), "rope|blocks", "theta|1000", "flux-dev/flux/between", "rope/*"
    ),
    "u-time-02": _model(
        wrong_operation(timestep_embedding=_time_over_1000), "time", "1000", "flux-dev/flux/between"
    ),
    "u-time-03": _model(
        wrong_operation(timestep_embedding=_first_time),
        "time",
        "first item|batch|item",
        "sd15/unet/between",
        "flux-dev/flux/between",
    ),
    "u-vae-01": _model(
        Bug(patched=_values_not_projected), r"attn_1", "projection|left out|v ", "sd15/vae-decoder/wide"
    ),
    "u-vae-02": wrong_parts("latents/*", "latent", "0.18215|SD ?1|sd1", scale=_other_scale(_of_sd15)),
    "u-vae-03": wrong_parts("latents/*", "latent|shown|z", "shift", scale=_other_scale(_shift_before)),
    "u-vae-04": _model(
        wrong_operation(group_norm=_group_eps), "norm", "eps", "sd15/vae-decoder/*", "flux-vae/vae-decoder/*"
    ),
    "u-vae-05": _model(
        Bug(patched=_patch(taesd, "tanh", tanh)), r"tanh|\b0\b|multiply", "clamp|tanh", "taesd/tae-decoder/outliers"
    ),
    "u-vae-06": _model(
        wrong_operation(attention=_unscaled),
        r"attn_1",
        "scale",
        "sd15/vae-decoder/wide",
        "flux-vae/vae-decoder/wide",
    ),
    "u-mod-01": _model(
        Bug(patched=lambda: patch.object(Module, "count", _one_block)),
        r"body|conv_body",
        "block|left out",
        "esrgan*",
        "lone/esrgan-x2/*",
    ),
    "u-mod-02": _model(
        Bug(patched=_patch(esrgan, "leaky_relu", leaky_relu)), "leaky_relu", "slope", "esrgan*", "lone/esrgan-x2/*"
    ),
    "u-mod-03": _model(
        Bug(patched=_patch(esrgan, "rrdb", _outer_not_scaled)),
        r"body\.\d",
        "0\\.2|scale|fifth|factor|left out",
        "esrgan*",
        "lone/esrgan-x2/*",
    ),
    "u-mod-04": _model(
        Bug(patched=_patch(esrgan, "pixel_unshuffle", pixel_unshuffle)),
        "pixel_unshuffle",
        "order|last|first|place before channel",
        "esrgan*",
        "lone/esrgan-x2/*",
    ),
    "u-mod-05": _model(
        Bug(patched=_patch(mmdit, "qkv", _no_qk_norm)),
        "ln_q|attn",
        "norm",
        "sd35-medium/mmdit/first-step",
        "sd35-large/mmdit/last-step",
    ),
    "u-mod-06": _model(Bug(patched=_patch(zimage, "tanh", tanh)), "tanh", "tanh|identity|input", "zimage/zimage/*"),
    "u-mod-07": _model(
        Bug(patched=_joined_the_other_way),
        r"single_blocks.*(linear2|concat)",
        "order|b first|swap|halves|inputs",
        "flux-dev/flux/between",
    ),
    "u-mod-08": _model(
        Bug(patched=_patch(mmdit, "crop_positions", _top_left)),
        "pos|add|embed",
        "pos|centre|corner",
        "sd3-medium/mmdit/*",
    ),
    "u-mod-09": _model(Bug(patched=_patch(t5, "t5_block", _bias_once)), r"block\.1", "bias|mask", "t5xxl/t5/*"),
    "u-mod-10": _model(
        wrong_operation(text_projection=_transposed), "text_projection|pooled", "transpos", "clip-g/clip_g/*"
    ),
}
HELD_OUT_MODELS = sourced("model", _TABLE)
