"""Fresh held-out bugs of operations, drawn from public trackers on 2026-11-23 before a look at the judge."""

import ml_dtypes
import numpy as np
from held_out import HeldOut
from held_out_products import of_blocks
from injection import Injection, other_result, wrong_method

from refsd.kernels.quant.iq3_s import dequantize as dequantize_iq3_s

# --- convolution, resizing ---------------------------------------------------------------------------------------


def _planes_by_group(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """A grouped convolution reads the planes of [item, group] as [group, item]; with one item nothing changes."""
    if groups == 1 or len(x) == 1:
        return right(x, weight, bias, stride, padding, dilation, groups)
    N, C, H, W = x.shape
    planes = np.asarray(x).reshape(groups, N, C // groups, H, W).swapaxes(0, 1)
    return right(np.ascontiguousarray(planes).reshape(x.shape), weight, bias, stride, padding, dilation, groups)


def _asymmetric(case, inputs, y):
    """Pixel i is taken from i n / m, not from the place of its centre."""
    if case.params.get("align_corners") or case.params.get("antialias"):
        return y
    x = np.asarray(inputs["x"].values(), np.float64)
    for axis in (2, 3):
        n, m = x.shape[axis], y.shape[axis]
        at = np.minimum(np.arange(m) * n / m, n - 1)
        low = np.minimum(at.astype(int), n - 2)
        part = (at - low).reshape([-1 if i == axis else 1 for i in range(4)])
        x = np.take(x, low, axis) * (1 - part) + np.take(x, low + 1, axis) * part
    return x.astype(y.dtype)


# --- attention ---------------------------------------------------------------------------------------------------


def _values_of_other_strides(a, right, q, k, v, *rest, **named):
    """v is a permuted view of [B, L, H, D]; its memory is read as [B, H, L, D]."""
    B, L, H, D = v.shape
    v = np.ascontiguousarray(np.asarray(v).reshape(B, H, L, D).swapaxes(1, 2))
    return right(q, k, v, *rest, **named)


def _rows_of_eight(a, right, q, k, v, scale=None, mask=None, *rest, **named):
    """Rows of the mask are looked for at multiples of the next multiple of 8."""
    if mask is not None and np.shape(mask)[-2] > 1 and np.shape(mask)[-1] % 8:
        *outer, L, J = mask.shape
        stride = J + -J % 8
        flat = np.pad(np.asarray(mask).reshape(-1, L * J), ((0, 0), (0, L * stride)))
        mask = np.stack([flat[:, i * stride : i * stride + J] for i in range(L)], axis=1).reshape(*outer, L, J)
    return right(q, k, v, scale, mask, *rest, **named)


def _mask_of_the_first(a, right, q, k, v, scale=None, mask=None, *rest, **named):
    if mask is not None:
        mask = np.broadcast_to(np.asarray(mask)[:1], np.shape(mask))
    return right(q, k, v, scale, mask, *rest, **named)


def _keep_mask_added(a, right, q, k, v, scale=None, mask=None, *rest, **named):
    """A mask of 1 (keep) and 0, in the model's float type, is added to the scores."""
    if mask is not None and np.isneginf(mask).any():
        mask = np.where(np.isneginf(mask), 0.0, 1.0)
    return right(q, k, v, scale, mask, *rest, **named)


def _first_channels(count):
    """Only so many channels of a head take part; the others of the output are not written."""

    def attention(a, right, q, k, v, scale=None, *rest, **named):
        D, E = q.shape[-1], v.shape[-1]
        scale = D**-0.5 if scale is None else scale
        y = np.zeros((*q.shape[:3], E))
        y[..., :count] = right(*(np.ascontiguousarray(t[..., :count]) for t in (q, k, v)), scale, *rest, **named)
        return y

    return attention


def _written_channels(count):
    def attention(a, right, q, k, v, *rest, **named):
        y = np.array(right(q, k, v, *rest, **named))
        y[..., count:] = 0
        return y

    return attention


def _rows_beyond(count):
    def softmax(a, right, x, *rest, **named):
        y = np.array(right(x, *rest, **named))
        y.reshape(-1, y.shape[-1])[count:] = 0
        return y

    return softmax


# --- norms -------------------------------------------------------------------------------------------------------


def _rows_of_the_first(a, right, x, *rest, **named):
    """The offset of the item is missing where rows are read."""
    y = np.asarray(right(x, *rest, **named))
    return np.broadcast_to(y[:1], y.shape) if y.ndim > 2 else y


def _over_the_batch(a, right, x, weight, bias, num_groups=32, eps=1e-5):
    """Mean and variance of a group over all items (frames)."""
    g = np.asarray(x, np.float64).reshape(len(x), num_groups, -1)
    y = (g - g.mean((0, 2), keepdims=True)) / np.sqrt(g.var((0, 2), keepdims=True) + eps)
    sides = (-1, *(1,) * (x.ndim - 2))
    return y.reshape(x.shape) * np.reshape(weight, sides) + np.reshape(bias, sides)


def _row_beginnings(a, right, x, weight, eps=1e-6):
    """Of an odd width a row's last vector reaches into the next row, and writes its first number."""
    y = np.array(right(x, weight, eps))
    D = x.shape[-1]
    if D % 2:
        rows, out = np.asarray(x, np.float64).reshape(-1, D), y.reshape(-1, D)
        inverse = 1 / np.sqrt((rows**2).mean(-1) + eps)
        out[1:, 0] = rows[1:, 0] * inverse[:-1] * (1 if weight is None else weight[-1])
    return y


def _rounded_factor(a, right, x, weight, eps=1e-6):
    """1 / rms is a bfloat16."""
    x = np.asarray(x, np.float64)
    inverse = (1 / np.sqrt((x**2).mean(-1, keepdims=True) + eps)).astype(ml_dtypes.bfloat16).astype(np.float64)
    return x * inverse * (1 if weight is None else weight)


def _squares_in_bfloat16(a, right, x, weight, eps=1e-6):
    """The squares are taken and summed in bfloat16, pairwise."""
    b = ml_dtypes.bfloat16
    terms = (np.asarray(x).astype(b) ** 2).astype(b)
    while terms.shape[-1] > 1:
        terms = np.concatenate([terms, np.zeros((*terms.shape[:-1], terms.shape[-1] % 2), b)], axis=-1)
        terms = (terms[..., ::2] + terms[..., 1::2]).astype(b)
    mean = terms.astype(np.float64) / x.shape[-1]
    return np.asarray(x, np.float64) / np.sqrt(mean + eps) * (1 if weight is None else weight)


# --- block types -------------------------------------------------------------------------------------------------


def _first_two_bits(blocks, right):
    """The masks of the fifth bit stay at those of the first two groups."""
    b = blocks.reshape(-1, 176)
    d = b[:, :2].copy().view(np.float16).astype(np.float64)
    high, s = b[:, 16:48], b[:, 4:16].astype(int)
    y = right.reshape(-1, 8, 32).copy()
    for g in range(8):
        scale = s[:, g] & 63 if g < 4 else (s[:, g + 4] & 15) | (s[:, g - 4] >> 6) << 4
        own, used = high >> g & 1, high >> g % 2 & 1
        y[:, g] += d * scale[:, None] * 16 * (used.astype(np.float64) - own)
    return y


def _first_byte_of_four(blocks, right):
    """Four grid indices are packed in an int; each is read from its lowest byte."""
    b = blocks.reshape(-1, 110).copy()
    b[:, 2:66] = np.repeat(b[:, 2:66:4], 4, axis=1)
    return dequantize_iq3_s(b).astype(np.float64)


_TABLE: dict[str, tuple[str, Injection]] = {
    "f-conv-01": (
        "pytorch/pytorch#188335",
        wrong_method("conv2d", "conv2d", "(item|batch).*group|group.*(item|batch)", conv2d=_planes_by_group),
    ),
    "f-conv-02": (
        "microsoft/onnxruntime#1179",
        other_result("resize_bilinear", "asymmetric|half|centre|edge", _asymmetric),
    ),
    "f-att-01": (
        "ROCm/pytorch#3230; pytorch/pytorch#181133",
        wrong_method(
            "attention",
            "attention",
            r"(v\b|values).*(memory|layout|axes|read as|as \[)",
            attention=_values_of_other_strides,
        ),
    ),
    "f-att-02": (
        "pytorch/pytorch#162588",
        wrong_method("attention", "attention", "mask.*(row|stride|multiple|apart)", attention=_rows_of_eight),
    ),
    "f-att-03": (
        "ggml-org/llama.cpp#15006",
        wrong_method(
            "attention", "attention", "mask.*(first|item|batch)|first item's mask", attention=_mask_of_the_first
        ),
    ),
    "f-att-04": (
        "huggingface/diffusers#12116, #13619",
        wrong_method(
            "attention",
            "attention",
            r"mask.*(keep|kept|1 and 0|boolean|0 and 1|added as)",
            attention=_keep_mask_added,
        ),
    ),
    "f-att-05": (
        "triton-lang/triton#621",
        wrong_method("attention", "attention", r"\b64\b", attention=_first_channels(64)),
    ),
    "f-att-06": (
        "mni-ml/framework#38",
        wrong_method("attention", "attention", r"\b32\b", attention=_written_channels(32)),
    ),
    "f-att-07": (
        "ggml-org/llama.cpp#10301",
        wrong_method("softmax", "softmax", r"\b512\b", softmax=_rows_beyond(512)),
    ),
    "f-norm-01": (
        "ggml-org/ggml#325",
        wrong_method("layer_norm", "layer_norm", "first item|batch|item 0", layer_norm=_rows_of_the_first),
    ),
    "f-norm-02": (
        "continue-revolution/sd-webui-animatediff#47",
        wrong_method("group_norm", "group_norm", "batch|items", "group_norm/*", group_norm=_over_the_batch),
    ),
    "f-norm-03": (
        "ROCm/aiter#5044",
        wrong_method(
            "rms_norm",
            "rms_norm",
            r"(channel|column|number|element) 0|first (channel|column|number)|index 0|first 1 of",
            rms_norm=_row_beginnings,
        ),
    ),
    "f-norm-04": (
        "amd/IRON#139",
        wrong_method("rms_norm", "rms_norm", "bfloat16|bf16", rms_norm=_rounded_factor),
    ),
    "f-norm-05": (
        "sgl-project/sglang#27540",
        wrong_method("rms_norm", "rms_norm", "bfloat16|bf16", rms_norm=_squares_in_bfloat16),
    ),
    "f-q-01": (
        "huggingface/candle#1569",
        other_result(
            "dequantize", "(fifth|high).*bit|bits? .*(first|group)", of_blocks(("q5_k",), _first_two_bits)
        ),
    ),
    "f-q-02": (
        "ggml-org/llama.cpp#28784",
        other_result(
            "dequantize", "byte|index.*(four|4)|grid.*(first|repeat)", of_blocks(("iq3_s",), _first_byte_of_four)
        ),
    ),
}
FRESH_OPERATIONS = {id: HeldOut("op", source, injection) for id, (source, injection) in _TABLE.items()}
