"""A fourteenth fresh set, of operations: from public trackers, drawn before a look at the judge."""

import numpy as np
from held_out import HeldOut
from injection import Bug, Injection, other_result, wrong_method

from refsd.kernels.attention_int8 import attention_int8
from refsd.kernels.interpolate import resize_bilinear
from refsd.kernels.softmax import softmax
from refsd.numerics.quantization import in_blocks, quantize

# --- norms and softmax -------------------------------------------------------------------------------------------


def _whole_fours(a, right, x, weight, eps=1e-6):
    """Loops run to W / 4: the last W % 4 numbers of a row are neither squared nor written."""
    x = np.asarray(x, np.float32)
    whole = x.shape[-1] // 4 * 4
    mean_square = np.square(x[..., :whole]).sum(axis=-1, keepdims=True) / np.float32(x.shape[-1])
    y = x / np.sqrt(mean_square + np.float32(eps))
    y = y if weight is None else y * weight
    return np.where(np.arange(x.shape[-1]) < whole, y, 0)


def _all_alike(a, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    """Scores that are all -inf become all 0: each key has the same share."""
    y = right(q, k, v, scale, mask, diagonal, sinks)
    if mask is None or sinks is not None:
        return y
    seen = np.broadcast_to(mask, (len(q), q.shape[2], q.shape[1], k.shape[1])).max(axis=-1) > -np.inf
    mean = np.repeat(np.asarray(v).mean(axis=1, keepdims=True), q.shape[2] // v.shape[2], axis=2)
    return np.where(seen.swapaxes(1, 2)[..., None], y, mean)


# --- attention ---------------------------------------------------------------------------------------------------


def _padding_unmasked(a, right, q, k, v, scale=None, mask=None, *rest, **named):
    """Keys, values and a given mask are padded with zeros to a multiple of 32: the padding takes part."""
    more = -k.shape[1] % 32
    if mask is None or not more:
        return right(q, k, v, scale, mask, *rest, **named)
    k, v = (np.pad(y, ((0, 0), (0, more), (0, 0), (0, 0))) for y in (k, v))
    return right(q, k, v, scale, np.pad(mask, ((0, 0), (0, 0), (0, 0), (0, more))), *rest, **named)


def _not_smoothed(case, inputs, y):
    """The keys' mean is not subtracted before they are rounded."""
    params = case.params
    if not params.get("smooth", True):
        return y
    q, k, v = (inputs[name].values().astype(y.dtype) for name in "qkv")
    scale = params.get("scale") or q.shape[-1] ** -0.5
    blocks = params.get("query_block", 128), params.get("key_block", 64)
    return attention_int8(q, k, v, scale, *blocks, smooth=False)


def _not_capped(case, inputs, y):
    """The cap is taken, and never applied."""
    q, k, v = (inputs[name].values().astype(np.float64) for name in "qkv")
    scale = case.params.get("scale") or q.shape[-1] ** -0.5
    k, v = (np.repeat(t, q.shape[2] // t.shape[2], axis=2) for t in (k, v))
    scores = np.einsum("blhd,bjhd->bhlj", q, k) * scale
    if "mask" in inputs:
        scores = scores + inputs["mask"].values().astype(np.float64)
    shares = softmax(scores.reshape(-1, scores.shape[-1])).reshape(scores.shape)
    return np.einsum("bhlj,bjhe->blhe", shares, v)


# --- convolutions ------------------------------------------------------------------------------------------------


def _group_on_the_inputs(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """Filters lie as [O / groups, R, S, C], groups side by side on C, and are read as [O, R, S, C / groups]."""
    if groups > 1:
        O, C, R, S = weight.shape
        lying = weight.reshape(groups, O // groups, C, R, S).transpose(1, 3, 4, 0, 2)
        weight = np.ascontiguousarray(np.ascontiguousarray(lying).reshape(O, R, S, C).transpose(0, 3, 1, 2))
    return right(x, weight, bias, stride, padding, dilation, groups)


def _neighbouring_rows(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """Columns of padding are not zeros but what lies there, channels last: the ends of the rows around."""
    top, bottom, left, right_side = padding
    N, C, H, W = x.shape
    if not left + right_side:
        return right(x, weight, bias, stride, padding, dilation, groups)
    pixels = np.pad(x.transpose(0, 2, 3, 1).reshape(-1, C), ((left, right_side), (0, 0)))
    at = np.arange(N * H)[:, None] * W + np.arange(left + W + right_side)
    wide = np.ascontiguousarray(pixels[at].reshape(N, H, -1, C).transpose(0, 3, 1, 2))
    return right(wide, weight, bias, stride, (top, bottom, 0, 0), dilation, groups)


def _no_negative_origins(a, right, x, weight, bias, stride=1, padding=(0,) * 6, dilation=1, groups=1):
    """A window's origin has no sign: one that begins in the padding is far outside, and finds zeros alone."""
    y = np.array(right(x, weight, bias, stride, padding, dilation, groups))
    strides = np.broadcast_to(stride, 3)
    for axis, (by, before) in enumerate(zip(strides, padding[::2], strict=True)):
        outside = np.arange(y.shape[2 + axis]) * by < before
        np.moveaxis(y, 2 + axis, 0)[outside] = 0.0 if bias is None else np.asarray(bias)[:, None, None]
    return y


# --- pictures ----------------------------------------------------------------------------------------------------


def _last_never_read(case, inputs, y):
    """Rows and columns are limited to the last but one."""
    if case.params.get("align_corners") or case.params.get("antialias"):
        return y
    x = np.array(inputs["x"].values().astype(y.dtype))
    x[..., -1, :] = x[..., -2, :]
    x[..., -1] = x[..., -2]
    return resize_bilinear(x, case.params["height"], case.params["width"])


# --- few bits ----------------------------------------------------------------------------------------------------


def _scales_by_sixteens(case, inputs, y):
    """Of a pair of groups of 32, the first scale is that of both first halves, the second that of both others."""
    weight = inputs["weight"]
    blocks = weight.data.reshape(weight.shape[0], -1, 144)
    d, dmin = (blocks[..., i : i + 2].copy().view(np.float16).astype(np.float32) for i in (0, 2))
    low, s = blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32), blocks[..., 4:16].astype(int)
    scale = np.concatenate([s[..., :4] & 63, s[..., 8:] & 15 | s[..., :4] >> 6 << 4], axis=-1)
    least = np.concatenate([s[..., 4:8] & 63, s[..., 8:] >> 4 | s[..., 4:8] >> 6 << 4], axis=-1)
    q = np.stack([low & 15, low >> 4], axis=-2).reshape(*blocks.shape[:2], 4, 2, 2, 16)
    by_half = (d * scale).reshape(*blocks.shape[:2], 4, 1, 2, 1)
    values = q * by_half - (dmin * least).reshape(*blocks.shape[:2], 4, 2, 1, 1)
    product = inputs["x"].values().astype(np.float64) @ values.reshape(weight.shape).astype(np.float64).T
    return product + (inputs["bias"].values() if "bias" in inputs else 0.0)


def _range_of_e4m3(a, right, x, weight, scale, bias, how, static=None, zero=None):
    """Numbers of e5m2, which reach 57344, are cut off at e4m3's 448."""
    if how.type != "f8_e5m2":
        return right(x, weight, scale, bias, how, static, zero)
    q = quantize(np.asarray(x, np.float32), how, a.settled, static, zero)
    y = (q.values.clip(-448, 448) @ weight.T) * (q.scale * scale)
    return y if bias is None else y + bias


def _scale_beyond_its_type(a, right, x, weight, scale, bias, how, static=None, zero=None):
    """Scales of blocks above 448 are made e4m3 as they are: NaN."""
    y = right(x, weight, scale, bias, how, static, zero)
    if static is None:
        return y
    largest = np.abs(in_blocks(np.asarray(x, np.float32), 16)).max(axis=-1) / 6 / np.asarray(static).reshape(())
    return np.where((largest > 464).any(axis=-1, keepdims=True), np.nan, y)


_TABLE = {
    "ft-op-01": (
        "op",
        "nntrainer/nntrainer#4318",
        wrong_method(
            "rms_norm",
            "rms_norm",
            "tail|remainder|multiple of 4|whole (fours|vectors|blocks)|4 at a time|not (read|written)|left out"
            "|last (one|1|number|column|element)",
            rms_norm=_whole_fours,
        ),
    ),
    "ft-op-02": (
        "op",
        "tenstorrent/tt-metal#54833",
        wrong_method(
            "attention",
            "attention",
            "padd|multiple of 32|(more|extra|further|additional) keys|keys (more|of zeros|beyond|behind)"
            "|beyond the last",
            "attention/f32/masked-*",
            "attention/f32/keys-masked-*",
            "attention/f32/hidden-*",
            attention=_padding_unmasked,
        ),
    ),
    "ft-op-03": (
        "op",
        "sonos/tract#2551",
        wrong_method(
            "conv2d",
            "conv2d",
            "group.*(order|layout|axis|axes|read|outer|inner|side)|weight.*(order|read as|layout|stands|permut)",
            "conv2d/*/groups-*",
            conv2d=_group_on_the_inputs,
        ),
    ),
    "ft-op-04": (
        "op",
        "Comfy-Org/ComfyUI#16035",
        other_result("attention_int8", "smooth|mean.*(not|left out|kept)|not.*mean|subtract", _not_smoothed),
    ),
    "ft-op-05": (
        "op",
        "paiml/aprender#3105",
        Injection(
            ("linear/q4_k/*",),
            Bug(answer=lambda case, inputs, y: {"y": _scales_by_sixteens(case, inputs, y["y"])}),
            "linear",
            r"scale.*(half|halves|\b16\b|neighbour|other (group|block)|next|pair|group)",
        ),
    ),
    "ft-op-06": (
        "op",
        "ROCm/rocm-libraries#10516",
        other_result(
            "resize_bilinear",
            "last (row|column|pixel|one|1)|clamp|limited|one short|never read|not read|last but one|edge",
            _last_never_read,
        ),
    ),
    "ft-op-07": (
        "op",
        "flashinfer-ai/flashinfer#2639",
        wrong_method(
            "linear_fp8",
            "linear_fp8",
            "448|e4m3|clip|clamp|saturat|range|limit|cut off",
            "linear_fp8/e5m2-x*",
            "linear_fp8/given-e5m2-*",
            linear_quantized=_range_of_e4m3,
        ),
    ),
    "ft-op-08": (
        "op",
        "sgl-project/sgl-kernel-xpu#491",
        other_result("attention_softcap", r"\bcap|tanh|uncapped|bend", _not_capped),
    ),
    "ft-op-09": (
        "op",
        "uxlfoundation/oneDNN#5080",
        wrong_method(
            "conv2d",
            "conv2d",
            "(row|line)s? (before|after|above|below)|(next|previous|neighbouring|other) (row|line)|wrap|padding.*"
            "(read|memory|not zero|not filled|neighbour)|memory around",
            "conv2d/f32/*",
            conv2d=_neighbouring_rows,
        ),
    ),
    "ft-op-10": (
        "op",
        "arm/ai-ml-emulation-layer-for-vulkan#252",
        wrong_method(
            "conv3d",
            "conv3d",
            "negative|unsigned|(begin|start)s? in the padding|windows?.*(padding|edge|border|outside)|bias alone",
            conv3d=_no_negative_origins,
        ),
    ),
    "ft-op-11": (
        "op",
        "NVIDIA/Model-Optimizer#1465",
        wrong_method(
            "linear_nvfp4",
            "linear_nvfp4",
            "448|clip|clamp|saturat|overflow|NaN.*scale|scale.*NaN",
            "linear_nvfp4/given-*",
            linear_quantized=_scale_beyond_its_type,
        ),
    ),
    "ft-op-12": (
        "op",
        "tenstorrent/tt-metal#56056, its softmax in an attention",
        wrong_method(
            "attention",
            "attention",
            "mean of|average|uniform|equal(ly)?|alike|same (share|weight)|every key|all keys|no key|sees? no"
            "|hidden (throughout|rows?)",
            "attention/f32/*unseen*",
            attention=_all_alike,
        ),
    ),
}
FOURTEENTH_OPERATIONS: dict[str, HeldOut] = {id: HeldOut(*row) for id, row in _TABLE.items()}
