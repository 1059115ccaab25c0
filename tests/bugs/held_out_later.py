"""Bugs collected after refsd/causes/operation/unlisted.py was written: the figure after."""

import ml_dtypes
import numpy as np
from held_out import HeldOut
from held_out_products import of_blocks
from injected_models import _model
from injection import Injection, other_result, wrong_method, wrong_operation


def _no_root(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """onnxruntime 16250: eps is added to the deviation."""
    g = np.asarray(x, np.float64).reshape(len(x), num_groups, -1)
    y = (g - g.mean(-1, keepdims=True)) / (g.std(-1, keepdims=True) + eps)
    sides = (-1, *(1,) * (x.ndim - 2))
    return y.reshape(x.shape) * np.reshape(weight, sides) + np.reshape(bias, sides)


def _interleaved_groups(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """mlx.nn.GroupNorm without pytorch_compatible: channels of a group are num_groups apart."""
    C = x.shape[1]
    order = np.arange(C).reshape(-1, num_groups).T.ravel()
    y = right(np.ascontiguousarray(x[:, order]), weight[order], bias[order], num_groups, eps)
    return np.asarray(y)[:, np.argsort(order)]


def _scaled_twice(a, right, q, k, v, scale=None, *rest, **named):
    """A fused attention scales queries that were scaled before."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return right(q, k, v, scale * q.shape[-1] ** -0.5, *rest, **named)


def _first_item_of_k(a, right, q, k, v, *rest, **named):
    """ggml broadcasts keys of batch 1 over all: every item reads the first one's keys and values."""
    return right(q, np.repeat(k[:1], len(k), 0), np.repeat(v[:1], len(v), 0), *rest, **named)


def _transposed_filter(a, right, x, weight, bias, *rest):
    """tensorflow's [R, S, C, K] filters carried over with rows and columns exchanged."""
    if weight.shape[2] != weight.shape[3] or weight.shape[2] == 1:
        return right(x, weight, bias, *rest)
    return right(x, np.ascontiguousarray(weight.swapaxes(2, 3)), bias, *rest)


def _one_stride(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """The padding of the width is that of the height."""
    top, bottom, _, _ = padding
    y = right(x, weight, bias, stride, padding, dilation, groups)
    wrong = right(x, weight, bias, stride, (top, bottom, top, bottom), dilation, groups)
    out = np.zeros_like(y)
    Q = min(y.shape[3], wrong.shape[3])
    out[..., :Q] = wrong[..., :Q]
    return out


def _bias_of_rows(a, right, x, weight, bias=None, *rest):
    """The bias of the column after."""
    return right(x, weight, None if bias is None else np.roll(bias, -1), *rest)


def _backwards(a, right, x, angle):
    """Rotation by the conjugate."""
    return right(x, -np.asarray(angle))


def _from_one(a, right, x, angle):
    """Positions counted from 1: the angles of one axis of text."""
    return right(x, np.asarray(angle) + np.asarray(angle)[:, 1:2] - np.asarray(angle)[:, :1])


def _first_scale(blocks, right):
    """candle issue 1939 and the like: the scale index does not advance: group 0's for its whole half."""
    b = blocks.reshape(-1, 210)
    codes = b[:, 192:208].view(np.int8).astype(np.float64)
    wrong = np.repeat(codes[:, ::8], 8, axis=1)
    return right.reshape(-1, 16, 16) * (wrong / np.where(codes == 0, 1, codes))[:, :, None]


def _offset_of_seven(blocks, right):
    b = blocks.reshape(-1, 18)
    d = b[:, :2].copy().view(np.float16).astype(np.float64)
    return right.reshape(-1, 32) + d


def _minimum_of_halves(blocks, right):
    """Q5_1 expanded with d q alone."""
    b = blocks.reshape(-1, 24)
    return right.reshape(-1, 32) - b[:, 2:4].copy().view(np.float16).astype(np.float64)


def _bfloat16(a, right, t, dim, *rest, **named):
    """huggingface/diffusers: the timestep in the model's bfloat16."""
    return right(np.asarray(t).astype(ml_dtypes.bfloat16).astype(np.float32), dim, *rest, **named)


def _tiny_slope(a, right, x, second_gates=False):
    """SiLU with a sigmoid of 1.702 x."""
    one, two = np.split(np.asarray(x, np.float64), 2, axis=-1)
    gate, value = (two, one) if second_gates else (one, two)
    return gate / (1 + np.exp(-1.702 * gate)) * value


def _eps_of_1e_5(a, right, x, weight, eps=1e-6):
    return right(x, weight, 1e-5)


_TABLE: dict[str, tuple[str, str, Injection]] = {
    "v-norm-01": (
        "op",
        "microsoft/onnxruntime, GroupNorm fusions",
        wrong_method("group_norm", "group_norm", "eps.*outside", "group_norm/*", group_norm=_no_root),
    ),
    "v-norm-02": (
        "op",
        "ml-explore/mlx, nn.GroupNorm(pytorch_compatible=False)",
        wrong_method(
            "group_norm", "group_norm", "interleav|together|apart", "group_norm/*", group_norm=_interleaved_groups
        ),
    ),
    "v-att-01": (
        "op",
        "ports onto a fused attention",
        wrong_method("attention", "attention", "scale", attention=_scaled_twice),
    ),
    "v-att-02": (
        "op",
        "ggml broadcasting of ne[3]",
        wrong_method("attention", "attention", "first|batch", attention=_first_item_of_k),
    ),
    "v-conv-01": (
        "op",
        "conversions of TensorFlow filters",
        wrong_method(
            "conv2d", "conv2d", "(R and S|transposed|height and width|rows and columns)", conv2d=_transposed_filter
        ),
    ),
    "v-conv-02": (
        "op",
        "tenstorrent/tt-metal#19542, review",
        wrong_method("conv2d", "conv2d", "padding", conv2d=_one_stride),
    ),
    "v-mm-01": ("op", "off by one in an epilogue", wrong_method("linear", "linear", "bias", linear=_bias_of_rows)),
    "v-rope-01": (
        "op",
        "Dao-AILab/flash-attention#569",
        wrong_method("rope", "rope", "other way|sign", rope=_backwards, rope_halves=_backwards),
    ),
    "v-rope-02": (
        "op",
        "positions from 1",
        wrong_method("rope", "rope", "ids|position|later|angle", rope=_from_one, rope_halves=_from_one),
    ),
    "v-q-01": (
        "op",
        "huggingface/candle, k_quants",
        other_result("dequantize", "scale", of_blocks(("q6_k",), _first_scale)),
    ),
    "v-q-02": (
        "op",
        "ports of Q4_0",
        other_result("dequantize", "7 taken|offset|7, not 8", of_blocks(("q4_0",), _offset_of_seven)),
    ),
    "v-q-03": (
        "op",
        "ports of Q5_1",
        other_result("dequantize", "minimum", of_blocks(("q5_1",), _minimum_of_halves)),
    ),
    "v-time-01": (
        "op",
        "huggingface/diffusers, timestep in bfloat16",
        wrong_method("timestep_embedding", "timestep", "bfloat16", timestep_embedding=_bfloat16),
    ),
    "v-act-01": (
        "op",
        "ports of SwiGLU",
        wrong_method("swiglu", "swiglu", "1.702|quick|sigmoid", swiglu=_tiny_slope),
    ),
    "v-mod-01": (
        "model",
        "ports of Flux: eps of QK norms",
        _model(wrong_operation(rms_norm=_eps_of_1e_5), "norm", "eps", "flux-dev/flux/quiet"),
    ),
}
HELD_OUT_LATER = {id: HeldOut(level, source, injection) for id, (level, source, injection) in _TABLE.items()}
