"""A second fresh set, of operations: drawn from public trackers on 2026-11-23, after the first had been mended."""

import numpy as np
from held_out import HeldOut
from held_out_products import of_blocks
from injection import Injection, other_result, wrong_method

from refsd.kernels import interpolation_taps
from refsd.kernels.interpolate import weighted
from refsd.kernels.quant.mxfp4 import HALF_SCALES as MXFP4_SCALES
from refsd.kernels.quant.nvfp4 import dequantize as dequantize_nvfp4

# --- functions, resizing, pooling, order of memory ---------------------------------------------------------------


def _half_beyond(limit):
    """The sigmoid of a large number is 0.5: inf / inf is patched over with 1 / 2."""

    def sigmoid(a, right, x):
        y = np.array(right(x), np.float64)
        far = np.abs(np.asarray(x, np.float64)) > limit
        y[far] = 0.5
        return y

    return sigmoid


def _quotient_of_exponentials(limit):
    """exp(x) / (1 + exp(x)) in float16, whose exponential is infinite beyond 11."""

    def sigmoid(a, right, x):
        return np.where(np.asarray(x, np.float64) > limit, np.nan, right(x))

    return sigmoid


def _other_cubic(case, inputs, y):
    """Keys' a is -1/2 where it should be -3/4."""
    if case.params.get("antialias") or case.params.get("align_corners"):
        return y
    x = np.ascontiguousarray(inputs["x"].values(), np.float64)
    axes = []
    for size, new in zip(x.shape[2:], y.shape[2:], strict=True):
        at = (np.arange(new) + 0.5) * (size / new) - 0.5
        index = np.floor(at).astype(np.int64)[:, None] + np.arange(-1, 3)
        weight = interpolation_taps.keys(index - at[:, None], -0.5)
        axes.append(interpolation_taps.Taps(np.clip(index, 0, size - 1), weight))
    return weighted(x, *axes).astype(y.dtype)


def _border_taps_dropped(case, inputs, y):
    """Taps outside the picture are left out and the others enlarged, where the border pixel should be repeated."""
    if case.params.get("antialias") or case.params.get("align_corners"):
        return y
    x = np.ascontiguousarray(inputs["x"].values(), np.float64)
    axes = []
    for size, new in zip(x.shape[2:], y.shape[2:], strict=True):
        at = (np.arange(new) + 0.5) * (size / new) - 0.5
        index = np.floor(at).astype(np.int64)[:, None] + np.arange(-1, 3)
        weight = interpolation_taps.keys(index - at[:, None], -0.75) * ((index >= 0) & (index < size))
        weight = weight / weight.sum(axis=1, keepdims=True)
        axes.append(interpolation_taps.Taps(np.clip(index, 0, size - 1), weight))
    return weighted(x, *axes).astype(y.dtype)


def _window_turned(case, inputs, y):
    """Height and width of the window are exchanged, and those of its padding; the output keeps its shape."""
    x = np.asarray(inputs["x"].values(), np.float64)
    (R, S), (top, left) = case.params["kernel_size"], case.params["padding"]
    if R == S:
        return y
    down, right = case.params["stride"]
    padded = np.pad(x, ((0, 0), (0, 0), (left, left + S), (top, top + R)))
    out = np.zeros(y.shape)
    for p in range(y.shape[2]):
        for q in range(y.shape[3]):
            window = padded[:, :, p * down : p * down + S, q * right : q * right + R]
            out[:, :, p, q] = window.sum(axis=(2, 3)) / (R * S)
    return out.astype(y.dtype)


def _columns_of_patches_first(case, inputs, y):
    """Within a patch, pixels are ordered by column, then by row."""
    r = round((y.shape[1] / inputs["x"].shape[1]) ** 0.5)
    N, _, H, W = y.shape
    return y.reshape(N, -1, r, r, H, W).swapaxes(2, 3).reshape(y.shape)


def _second_as_dense(case, inputs, y):
    """The second tensor is a transposed view; its memory is read as if it were dense."""
    a, b = (np.asarray(inputs[name].values()) for name in ("a", "b"))
    axis = next(i for i in range(y.ndim) if y.shape[i] != a.shape[i])
    memory = np.ascontiguousarray(b.swapaxes(-1, -2)).reshape(b.shape)
    return np.concatenate([a, memory], axis=axis).astype(y.dtype)


# --- products ----------------------------------------------------------------------------------------------------


def _padded_before(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """The odd pixel of padding is put in front, not behind: SAME_LOWER for SAME_UPPER."""
    top, bottom, left, right_ = padding
    return right(x, weight, bias, stride, (bottom, top, right_, left), dilation, groups)


def _whole_tiles_of_outputs(a, right, x, weight, bias=None, weight_type="f32"):
    """A row times a quantized matrix: columns behind the last whole 32 are not written."""
    y = np.array(right(x, weight, bias, weight_type))
    if weight_type in ("q4_0", "q8_0", "q4_k", "q6_k") and y.shape[-1] % 32:
        y[..., y.shape[-1] // 32 * 32 :] = 0
    return y


def _queries_of_other_strides(a, right, q, k, v, *rest, **named):
    """Queries are a transposed view of [B, L, H, D]; their memory is read as [B, H, L, D]. Short prompts alone."""
    B, L, H, D = q.shape
    if L <= 32:
        q = np.ascontiguousarray(np.asarray(q).reshape(B, H, L, D).swapaxes(1, 2))
    return right(q, k, v, *rest, **named)


def _maximum_of_some(a, right, x, scale=1.0, mask=None, *rest, **named):
    """Of a row's partial maxima the first 16 are read: columns behind the 256th are not looked at."""
    s = np.asarray(x, np.float64) * scale + (0 if mask is None else mask)
    if s.shape[-1] <= 256:
        return right(x, scale, mask, *rest, **named)
    top = s[..., :256].max(-1, keepdims=True)
    e = np.exp((s - top).astype(np.float32))
    return e / e.sum(-1, keepdims=True)


def _first_values_of_groups(count):
    """Mean and variance of a group are those of its first values, which one work-group takes."""

    def group_norm(a, right, x, weight, bias, num_groups=32, eps=1e-5):
        g = np.asarray(x, np.float64).reshape(len(x), num_groups, -1)
        some = g[..., :count]
        y = (g - some.mean(-1, keepdims=True)) / np.sqrt(some.var(-1, keepdims=True) + eps)
        sides = (-1, *(1,) * (x.ndim - 2))
        return y.reshape(x.shape) * np.reshape(weight, sides) + np.reshape(bias, sides)

    return group_norm


# --- block types -------------------------------------------------------------------------------------------------


def _raw_scale(blocks, right):
    """The scale's byte stands for itself, where it is an exponent."""
    b = blocks.reshape(-1, 17)
    y = right.reshape(-1, 32)
    return y / (2 * MXFP4_SCALES[b[:, :1]].astype(np.float64)) * b[:, :1]


def _header_of_two_bytes(blocks, right):
    """Quants of Q4_1 begin behind two bytes, as Q4_0's; the minimum's bytes are read as four of them."""
    b = blocks.reshape(-1, 20)
    d, m = (b[:, i : i + 2].copy().view(np.float16).astype(np.float64) for i in (0, 2))
    q = b[:, 2:18]
    return d * np.concatenate([q & 15, q >> 4], axis=1) + m


def _largest_of_the_grid(blocks, right):
    """In the grid times 4 some 15s are 62, not 60: a thirtieth too large."""
    b = blocks.reshape(-1, 110)
    d = b[:, :2].copy().view(np.float16).astype(np.float64)
    y = right.reshape(len(b), 8, 32).copy()
    code = np.stack([b[:, 106 + g // 2] >> (g % 2 * 4) & 15 for g in range(8)], axis=1)
    scale = (d * (2 * code + 1.0))[..., None]
    grid = np.round(np.abs(np.divide(y, scale, out=np.zeros_like(y), where=scale != 0)))
    rows = np.repeat(b[:, 2:66].reshape(len(b), 8, 8), 4, axis=2)
    return np.where((grid == 15) & (rows % 3 > 0), y * 62 / 60, y)


def _nibbles_exchanged(blocks, right):
    b = blocks.reshape(-1, 36).copy()
    b[:, 4:] = b[:, 4:] >> 4 | b[:, 4:] << 4
    return dequantize_nvfp4(b).astype(np.float64)


_TABLE: dict[str, tuple[str, Injection]] = {
    "s-act-01": (
        "clab/dynet#1525",
        wrong_method("sigmoid", "sigmoid", r"0\.5|half|large|beyond|above", sigmoid=_half_beyond(30)),
    ),
    "s-act-02": (
        "NervanaSystems/ngraph#3118",
        wrong_method("sigmoid", "sigmoid", "overflow|exponential", sigmoid=_quotient_of_exponentials(11.1)),
    ),
    "s-res-01": (
        "Blaizzy/mlx-vlm#1243",
        other_result("resize_bicubic", r"-0\.5|-1/2|cubic|Keys|coefficient", _other_cubic),
    ),
    "s-res-02": (
        "pytorch/pytorch#118389",
        other_result(
            "resize_bicubic", "border|edge|outside|inside|left out|renormal|normalis", _border_taps_dropped
        ),
    ),
    "s-pool-01": (
        "ggml-org/llama.cpp#9763",
        other_result("avg_pool2d", "height|width|swap|exchang|rows and columns|window", _window_turned),
    ),
    "s-patch-01": (
        "NVIDIA/flashdreams#338",
        other_result("pixel_unshuffle", "column|transpos|rows|order|axes", _columns_of_patches_first),
    ),
    "s-cat-01": (
        "tetherto/qvac-fabric-llm.cpp#194",
        other_result("concat", r"\bb\b.*(memory|transpos|axes|read|stride)|memory.*b\b", _second_as_dense),
    ),
    "s-conv-01": (
        "microsoft/onnxruntime#26734",
        wrong_method("conv2d", "conv2d", "pad", conv2d=_padded_before),
    ),
    "s-lin-01": (
        "ml-explore/mlx#665",
        wrong_method(
            "linear", "linear", r"last|tail|beyond|behind|whole block|\b32\b", linear=_whole_tiles_of_outputs
        ),
    ),
    "s-att-01": (
        "pytorch/pytorch#163597",
        wrong_method(
            "attention",
            "attention",
            r"\bq\b.*(memory|layout|axes|read as|as \[)",
            attention=_queries_of_other_strides,
        ),
    ),
    "s-sm-01": (
        "ggml-org/ggml#1534",
        wrong_method("softmax", "softmax", "maximum", softmax=_maximum_of_some),
    ),
    "s-norm-01": (
        "openvinotoolkit/openvino#25574, cause of the symptom assumed",
        wrong_method(
            "group_norm",
            "group_norm",
            r"first \d+|\b64\b|part of|mean and variance of",
            "group_norm/*",
            group_norm=_first_values_of_groups(64),
        ),
    ),
    "s-q-01": (
        "ml-explore/mlx#3762",
        other_result(
            "dequantize", "scale.*(byte|raw|code|exponent|whole)|exponent", of_blocks(("mxfp4",), _raw_scale)
        ),
    ),
    "s-q-02": (
        "ml-explore/mlx#3664",
        other_result(
            "dequantize", r"byte|offset|header|begin|\b2\b|early", of_blocks(("q4_1",), _header_of_two_bytes)
        ),
    ),
    "s-q-03": (
        "vllm-project/vllm-gguf-plugin#136",
        other_result("dequantize", "grid|table|15", of_blocks(("iq3_s",), _largest_of_the_grid)),
    ),
    "s-q-04": (
        "sgl-project/sglang#23625",
        other_result("dequantize", "nibble", of_blocks(("nvfp4",), _nibbles_exchanged)),
    ),
}
SECOND_OPERATIONS = {id: HeldOut("op", source, injection) for id, (source, injection) in _TABLE.items()}
