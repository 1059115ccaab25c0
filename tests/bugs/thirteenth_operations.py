"""A thirteenth fresh set, of operations: from public trackers, drawn before a look at the judge."""

from dataclasses import replace

import numpy as np
from held_out import HeldOut
from injection import Bug, Injection, other_result, wrong_method

from refsd.kernels.interpolate import weighted
from refsd.kernels.interpolation_taps import Taps, triangle

# --- products ----------------------------------------------------------------------------------------------------


def _one_subgroup_of_threads(a, right, x, weight, bias=None, weight_type="f32"):
    """512 threads take two columns each of every 1024; the sum is that of the first 32 threads."""
    x = np.asarray(x)
    if weight_type != "f32" or x.size >= 4 * x.shape[-1]:
        return right(x, weight, bias, weight_type)
    return right(np.where(np.arange(x.shape[-1]) % 1024 < 64, x, 0).astype(x.dtype), weight, bias, weight_type)


def _weight_alone_rotated(a, right, x, weight, scale, bias, how, static=None, zero=None):
    """The weights were multiplied by a Hadamard matrix; at inference the activations are not."""
    return right(x, weight, scale, bias, replace(how, rotation=0), static, zero)


def _tiled_heads(a, right, q, k, v, *rest, **named):
    """Heads of keys and values are tiled as a whole, not each repeated: query head h takes number h modulo G."""
    times = np.shape(q)[2] // np.shape(k)[2]
    return right(q, np.tile(k, (1, 1, times, 1)), np.tile(v, (1, 1, times, 1)), *rest, **named)


# --- norms and softmax -------------------------------------------------------------------------------------------


def _unit(x, weight, eps, mean_square):
    y = np.asarray(x, np.float32) / np.sqrt(mean_square + np.float32(eps))
    return y if weight is None else y * weight


def _over_both_last_axes(a, right, x, weight, eps=1e-6):
    """The mean square of b, f, y, x is taken over y and x, though the axes given are the last alone."""
    if np.ndim(x) != 4:
        return right(x, weight, eps)
    return _unit(x, weight, eps, np.square(np.asarray(x, np.float32)).mean(axis=(-2, -1), keepdims=True))


def _two_rows_share_a_sum(a, right, x, weight, eps=1e-6):
    """Rows of 129 to 256 columns run two at a time, and both add their squares up in one place."""
    D = np.shape(x)[-1]
    if not 128 < D <= 256:
        return right(x, weight, eps)
    sums = np.square(np.asarray(x, np.float32).reshape(-1, D)).sum(axis=-1)
    pairs = np.add.reduceat(sums, np.arange(0, len(sums), 2))
    both = np.repeat(pairs, 2)[: len(sums)]
    return _unit(x, weight, eps, both.reshape(*np.shape(x)[:-1], 1) / np.float32(D))


def _padding_in_the_variance(a, right, x, weight=None, bias=None, eps=1e-5):
    """Columns up to the next power of two are read as zeros, and each adds the square of 0 - mean."""
    x = np.asarray(x, np.float32)
    D = x.shape[-1]
    mean = x.mean(axis=-1, keepdims=True)
    away = (1 << (D - 1).bit_length()) - D
    variance = (np.square(x - mean).sum(axis=-1, keepdims=True) + away * np.square(mean)) / np.float32(D)
    y = (x - mean) / np.sqrt(variance + np.float32(eps))
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _maximum_of_sixteen_subgroups(a, right, x, scale=1.0, mask=None, sinks=None):
    """Of 64 subgroups of 16 threads, whose maxima lie in shared memory, the first 16 are read."""
    x = np.asarray(x, np.float32)
    if x.shape[-1] <= 256 or mask is not None or sinks is not None:
        return right(x, scale, mask, sinks)
    x = x * np.float32(scale)
    most = x[..., np.arange(x.shape[-1]) % 1024 < 256].max(axis=-1, keepdims=True)
    y = np.exp(x - most)
    return y / y.sum(axis=-1, keepdims=True)


# --- blocks and pictures -----------------------------------------------------------------------------------------


def _neighbouring_nibbles(case, inputs, y):
    """Numbers 2i and 2i + 1 are the low and the high half of byte i; the fifth bits are counted likewise."""
    minimum = inputs["x"].type == "q5_1"
    head = 4 if minimum else 2
    blocks = inputs["x"].data.reshape(-1, head + 20)
    d, *m = blocks[:, :head].copy().view(np.float16).astype(np.float32).T[..., None]
    fifth = np.unpackbits(blocks[:, head : head + 4], axis=1, bitorder="little")
    packed = blocks[:, head + 4 :]
    q = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(blocks), 32) | fifth << 4
    wrong = d * q.astype(np.float32) + m[0] if minimum else d * (q.astype(np.float32) - 16)
    return wrong.reshape(y.shape)


def _four_at_most(size, new):
    taps = triangle(size, new)
    index, weight = taps.index[:, :4], taps.weight[:, :4]
    return Taps(index, weight / weight.sum(axis=1, keepdims=True))


def _four_contributors(case, inputs, y):
    """A new pixel has room for four old ones on each axis; the others are dropped, and the weights made to fit."""
    if not case.params.get("antialias"):
        return y
    x = np.ascontiguousarray(inputs["x"].values().astype(y.dtype))
    return weighted(x, _four_at_most(x.shape[2], y.shape[2]), _four_at_most(x.shape[3], y.shape[3]))


_TABLE = {
    "th-op-01": (
        "op",
        "ericcurtin/vllm-vulkan#58",
        wrong_method(
            "linear",
            "linear",
            "subgroup|partial|left out|only the first|first (32|64)|not (summed|added)|part of (the|a) (sum|row)"
            "|columns.*(missing|skipped|dropped)|truncat",
            "linear/f32/row-*",
            linear=_one_subgroup_of_threads,
        ),
    ),
    "th-op-02": (
        "op",
        "openvinotoolkit/openvino#37062",
        wrong_method(
            "rms_norm",
            "rms_norm",
            "(all|over|whole|several).*heads?|heads as one|both|axes|more than the last|whole (token|row)|together",
            "rms_norm/*/heads-*",
            rms_norm=_over_both_last_axes,
        ),
    ),
    "th-op-03": (
        "op",
        "ekzhang/jax-js#180",
        wrong_method(
            "attention",
            "attention",
            "tile|modulo|mod G|interleav|repeat|(other|wrong) head|heads? of (the )?(key|group|k|v)",
            "attention/*/grouped-*",
            attention=_tiled_heads,
        ),
    ),
    "th-op-04": (
        "op",
        "paiml/aprender#1621",
        Injection(
            ("dequantize/q5_0/*", "dequantize/q5_1/*"),
            Bug(answer=lambda case, inputs, y: {"y": _neighbouring_nibbles(case, inputs, y["y"])}),
            "dequantize",
            "nibble|interleav|neighbour|half of (each|a|the) (byte|block)|order|halves|pairs",
        ),
    ),
    "th-op-05": (
        "op",
        "ml-explore/mlx#3792",
        wrong_method(
            "rms_norm",
            "rms_norm",
            "two rows|pairs? of rows|neighbour|(other|next) row|shared?|several rows|rows together",
            "rms_norm/*/bare-*",
            rms_norm=_two_rows_share_a_sum,
        ),
    ),
    "th-op-06": (
        "op",
        "pytorch/executorch#20733",
        other_result(
            "resize_bilinear",
            "four|4 |taps|contribut|pixels.*(left out|dropped)|support|narrow|cut|truncat",
            _four_contributors,
        ),
    ),
    "th-op-07": (
        "op",
        "ModelCloud/GPTQModel#2980",
        wrong_method(
            "linear_int8",
            "linear_int8",
            "rotat|hadamard",
            "linear_int8/rotated*",
            linear_quantized=_weight_alone_rotated,
        ),
    ),
    "th-op-08": (
        "op",
        "triton-lang/triton#9838",
        wrong_method(
            "layer_norm",
            "layer_norm",
            "power of (2|two)|padd|zeros|masked|beyond the row|mean.*variance",
            "layer_norm/f32/*",
            layer_norm=_padding_in_the_variance,
        ),
    ),
    "th-op-09": (
        "op",
        "ggml-org/llama.cpp#24451",
        wrong_method(
            "softmax",
            "softmax",
            "maximum|largest|overflow|subtract|max ",
            "softmax/*/long-*",
            softmax=_maximum_of_sixteen_subgroups,
        ),
    ),
}
THIRTEENTH_OPERATIONS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
