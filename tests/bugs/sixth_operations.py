"""A sixth fresh set, of operations and block types: from public trackers, drawn before a look at the judge."""

from dataclasses import replace

import numpy as np
from held_out import HeldOut
from injection import other_result, wrong_method

from refsd.kernels.quant.grids import IQ3_S

# --- attention and softmax ---------------------------------------------------------------------------------------


def _padded_keys(a, right, q, k, v, scale=None, mask=None, diagonal=None, *rest):
    """The last block of 64 keys is read beyond its end: zeros, whose scores are 0 and take part in the sum."""
    J = k.shape[1]
    more = -J % 64
    if not more:
        return right(q, k, v, scale, mask, diagonal, *rest)
    k, v = (np.pad(np.asarray(t), ((0, 0), (0, more), (0, 0), (0, 0))) for t in (k, v))
    own = np.zeros((1, 1, q.shape[1], J)) if mask is None else np.asarray(mask)
    own = own.reshape((1,) * (4 - own.ndim) + own.shape)
    if diagonal is not None:
        own = own + np.where(np.arange(J) > np.arange(q.shape[1])[:, None] + diagonal, -np.inf, 0)
    own = np.broadcast_to(own, (*own.shape[:3], J))
    return right(q, k, v, scale, np.pad(own, ((0, 0),) * 3 + ((0, more),)), None, *rest)


def _first_head_alone(a, right, q, k, v, scale=None, mask=None, diagonal=None, *rest):
    """With a causal mask, only the first head is computed; the others' memory is zero."""
    y = np.array(right(q, k, v, scale, mask, diagonal, *rest))
    if diagonal is not None:
        y[:, :, 1:] = 0
    return y


def _sink_by_row(a, right, x, scale=1.0, mask=None, sinks=None):
    """A row's sink is that of its number among all rows, modulo the heads."""
    if sinks is None:
        return right(x, scale, mask)
    x = np.asarray(x, np.float64) * scale + (0 if mask is None else mask)
    rows = x.reshape(-1, x.shape[-1])
    own = np.asarray(sinks, np.float64)[np.arange(len(rows)) % len(sinks)][:, None]
    top = np.maximum(rows.max(-1, keepdims=True), own)
    e = np.exp(rows - top)
    return (e / (e.sum(-1, keepdims=True) + np.exp(own - top))).reshape(x.shape)


# --- resizing, convolution, norms, products ----------------------------------------------------------------------


def _cubic(t, a):
    t = np.abs(t)
    near, far = (a + 2) * t**3 - (a + 3) * t**2 + 1, a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


def _of_a_half(case, inputs, y):
    """Keys' kernel with a = -0.5 where it is -0.75."""
    if case.params.get("align_corners") or case.params.get("antialias"):
        return y
    x = inputs["x"].values().astype(np.float64)
    for axis in (2, 3):
        n, m = y.shape[axis], x.shape[axis]
        source = (np.arange(n) + 0.5) * m / n - 0.5
        matrix = np.zeros((n, m))
        for tap in range(-1, 3):
            at = np.floor(source) + tap
            np.add.at(matrix, (np.arange(n), np.clip(at, 0, m - 1).astype(int)), _cubic(source - at, -0.5))
        x = np.moveaxis(np.tensordot(matrix, x, (1, axis)), 0, axis)
    return x.astype(y.dtype)


def _upper_half(case, inputs, y):
    """The grid of blocks of an antialiased downsampling is too small: rows behind it are never written."""
    wrong = np.array(y)
    if case.params.get("antialias") and y.shape[2] < inputs["x"].shape[2]:
        wrong[:, :, y.shape[2] * y.shape[2] // inputs["x"].shape[2] + 1 :] = 0
    return wrong


def _batch_within_channels(a, right, x, weight, *rest, **named):
    """The product's memory is [K, N, P, Q] and is read as [N, K, P, Q]: pictures are mixed."""
    y = np.asarray(right(x, weight, *rest, **named))
    return np.ascontiguousarray(y.swapaxes(0, 1)).reshape(y.shape)


def _first_item_alone(a, right, x, weight, *rest, **named):
    y = np.array(right(x, weight, *rest, **named))
    y[1:] = 0
    return y


def _shared_slot(a, right, x, weight, eps=1e-6):
    """Four rows of a work group share a slot for their sum of squares: the last one's stays."""
    x = np.asarray(x, np.float64)
    rows = x.reshape(-1, x.shape[-1])
    last = np.minimum(np.arange(len(rows)) // 4 * 4 + 3, len(rows) - 1)
    y = (rows / np.sqrt((rows**2).mean(-1, keepdims=True)[last] + eps)).reshape(x.shape)
    return y if weight is None else y * weight


def _group_a_channel(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """A single group is normalised as one for each channel."""
    return right(x, weight, bias, x.shape[1] if num_groups == 1 else num_groups, eps)


def _tail_of_dense_rows(case, inputs, y):
    """x is a view of [N, H, L, D]; the channels that are not turned are read as if it were dense."""
    wrong, x, turned = np.array(y), inputs["x"].values(), sum(case.params["axes_dim"])
    memory = np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape)
    wrong[..., turned:] = memory[..., turned:]
    return wrong


def _stale_lanes(a, right, x, weight, bias=None, weight_type="f32"):
    """The last vector of 16 is loaded in part; its other lanes keep what they had, and are summed once more."""
    y, K = right(x, weight, bias, weight_type), weight.shape[1]
    tail = K % 16
    if not tail or K < 16 or weight_type != "f32":
        return y
    stale = slice(K // 16 * 16 - 16 + tail, K // 16 * 16)
    return np.asarray(y) + np.asarray(x, np.float64)[..., stale] @ np.asarray(weight, np.float64)[:, stale].T


def _truncated(a, right, x, weight, scale, bias, how, static=None, zero=None):
    """Activations are cast to int8, which cuts off, where they should be rounded first."""
    return right(x, weight, scale, bias, replace(how, rounding="zero") if how.type == "int8" else how, static, zero)


# --- block types -------------------------------------------------------------------------------------------------


def _blocks(type: str, size: int, change):
    """change: blocks [n, bytes], right values [n, K] -> wrong values [n, K]"""

    def wrong(case, inputs, y):
        tensor = inputs["x"]
        if tensor.type != type:
            return y
        blocks = tensor.data.reshape(-1, size)
        return change(blocks, np.asarray(y, np.float64).reshape(len(blocks), -1)).reshape(y.shape).astype(y.dtype)

    return wrong


def _half(blocks, at):
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float64)


def _bits(data, width):
    """Codes of a run of bytes, lowest bits first. [n, B] -> [n, 8 B / width]"""
    shifts = np.arange(0, 8, width)
    return (data[:, :, None] >> shifts & 2**width - 1).reshape(len(data), -1).astype(np.float64)


def _grid_entry(blocks, y):
    """Some entries of the grid's table hold 62 / 4 for 15."""
    low, high = blocks[:, 2:66].astype(int), _bits(blocks[:, 66:74], 1).astype(int)
    rows = low | high << 8
    wrong = (IQ3_S == 15) & (np.arange(IQ3_S.size).reshape(IQ3_S.shape) % 3 == 0)
    return np.where(wrong[rows].reshape(y.shape), y * 62 / 60, y)


def _four_bit_scales(blocks, y):
    """Q3_K with 16 scales of 4 bits, less 8, and with codes that lie one behind the other."""
    scale = np.repeat(_bits(blocks[:, 96:104], 4) - 8, 16, axis=1)
    return _half(blocks, 108) * scale * (_bits(blocks[:, 32:96], 2) + 4 * _bits(blocks[:, :32], 1) - 4)


def _codes_in_a_row(blocks, y):
    """Q5_K whose nibbles and fifth bits are those of neighbours."""
    groups = y.reshape(len(y), 8, 32)
    q = np.stack([blocks[:, 48:].reshape(-1, 4, 32) & 15, blocks[:, 48:].reshape(-1, 4, 32) >> 4], axis=2)
    fifth = blocks[:, None, 16:48] >> np.arange(8)[:, None] & 1
    codes = (q.reshape(len(y), 8, 32) + 16 * fifth).astype(np.float64)
    low, top = codes.argmin(-1)[..., None], codes.argmax(-1)[..., None]
    c0, c1, y0, y1 = (np.take_along_axis(t, at, -1) for t in (codes, groups) for at in (low, top))
    step = (y1 - y0) / np.maximum(c1 - c0, 1)
    own = (_bits(blocks[:, 48:], 4) + 16 * _bits(blocks[:, 16:48], 1)).reshape(groups.shape)
    return y0 + step * (own - c0)


def _raw_scale(blocks, y):
    """MXFP4 whose scale's byte is taken for the scale, not for a power of two."""
    byte = blocks[:, :1].astype(np.float64)
    return y / 2 ** (byte - 127) * byte


_TABLE: dict[str, tuple] = {
    "z-att-01": (
        "op",
        "flashinfer-ai/flashinfer#5090",
        wrong_method("attention", "attention", r"key|padd|zero|\b64\b|scores", attention=_padded_keys),
    ),
    "z-att-02": (
        "op",
        "tracel-ai/burn#4484",
        wrong_method(
            "attention", "attention", "zero|not computed|nothing|not written", attention=_first_head_alone
        ),
    ),
    "z-sm-01": (
        "op",
        "modular/modular#6591, the second cause",
        wrong_method("softmax", "softmax", "sinks?", softmax=_sink_by_row),
    ),
    "z-up-01": (
        "op",
        "Blaizzy/mlx-vlm#1243",
        other_result("resize_bicubic", r"-?0\.5|\ba is", _of_a_half),
    ),
    "z-up-02": (
        "op",
        "microsoft/onnxruntime#25264, cause in part assumed",
        other_result("resize_bicubic", "zero|not written|nothing", _upper_half),
    ),
    "z-conv-01": (
        "op",
        "ggml-org/ggml#737",
        wrong_method(
            "conv2d", "conv2d", "order|memory|axes|stored|exchanged|batch|items", conv2d=_batch_within_channels
        ),
    ),
    "z-conv-02": (
        "op",
        "ggml-org/ggml#1448, in conv2d",
        wrong_method("conv2d", "conv2d", "zero|first item|items from 1|not written", conv2d=_first_item_alone),
    ),
    "z-norm-01": (
        "op",
        "vllm-project/vllm-xpu-kernels#316, review",
        wrong_method(
            "rms_norm",
            "rms_norm",
            r"\b4 rows|shared|another row|of the last",
            rms_norm=_shared_slot,
        ),
    ),
    "z-norm-02": (
        "op",
        "NVIDIA/TensorRT#4756",
        wrong_method("group_norm", "group_norm", "a group a channel|num_groups", group_norm=_group_a_channel),
    ),
    "z-rope-01": (
        "op",
        "ggml-org/llama.cpp#14582",
        other_result("rope", "order|memory|axes|stride|dense|exchanged|stored", _tail_of_dense_rows),
    ),
    "z-lin-01": (
        "op",
        "NVIDIA/NeMo-Speech.cpp#33, the tail of a dot product",
        wrong_method("linear", "linear", "twice|again|once more|tail|last", "linear/f32/*", linear=_stale_lanes),
    ),
    "z-int8-01": (
        "op",
        "sgl-project/sglang-jax#1598",
        wrong_method("linear_int8", "linear_int8", "cut|trunc|toward zero|rounded", linear_quantized=_truncated),
    ),
    "z-q-01": (
        "loader",
        "vllm-project/vllm-gguf-plugin#136",
        other_result("dequantize", r"grid|table|15|62|1\.03", _blocks("iq3_s", 110, _grid_entry)),
    ),
    "z-q-02": (
        "loader",
        "paiml/aprender#2115",
        other_result("dequantize", r"scales?.*(4 bits|low|high)|codes", _blocks("q3_k", 110, _four_bit_scales)),
    ),
    "z-q-03": (
        "loader",
        "paiml/aprender#2127",
        other_result(
            "dequantize",
            "neighbour|interleaved|one behind|sequential|in a row",
            _blocks("q5_k", 176, _codes_in_a_row),
        ),
    ),
    "z-q-04": (
        "loader",
        "ml-explore/mlx#3762",
        other_result(
            "dequantize", "scale.*(byte|number|integer|power|exponent|log)", _blocks("mxfp4", 17, _raw_scale)
        ),
    ),
}
SIXTH_OPERATIONS = {id: HeldOut(*row) for id, row in _TABLE.items()}
