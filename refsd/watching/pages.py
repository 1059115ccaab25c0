"""Calls that golden/operations has a page for: the page computes the truth, derives the bound, knows the bugs."""

import importlib
import math
from collections.abc import Callable

import numpy as np

from refsd.watching.calls import Call, NotJudged, Question, Rule, question, values


def convolution(call: Call) -> Question:
    """Convolution of a line, a picture or a video; a transposed one as a plain one of the spread input."""
    a = call.args
    x, weight = values(a["input"]), values(a["weight"])
    bias = None if a["bias"] is None else values(a["bias"])
    axes = x.ndim - 2
    stride, padding, dilation = (_each(a[name], axes) for name in ("stride", "padding", "dilation"))
    sides = [(p, p) for p in padding]
    if a["transposed"]:
        if call.numerics.storage != call.numerics.compute:
            raise NotJudged("a transposed convolution may add up its taps in few bits")
        x, weight, sides = _transposed(x, weight, stride, sides, dilation, call)
        stride = [1] * axes
    params = {"groups": a["groups"]}
    if axes == 1:
        x, weight, sides = x[:, :, None], weight[:, :, None], [(0, 0), *sides]
        stride, dilation = [1, *stride], [1, *dilation]
    params |= {"stride": tuple(stride), "dilation": tuple(dilation), "padding": tuple(p for s in sides for p in s)}
    op = "conv3d" if x.ndim == 5 else "conv2d"
    K = call.chosen(len(weight)) if a["groups"] == 1 else slice(None)
    inputs = {"x": x, "weight": weight[K], "bias": None if bias is None else bias[K]}
    return question(call, op, inputs, params, lambda y: (y[:, :, None] if axes == 1 else y)[:, K])


def _each(value, axes: int) -> list[int]:
    return list(value) * axes if len(value) == 1 else list(value)


def _transposed(x, weight, stride, sides, dilation, call: Call):
    """Return the input with zeros between its pixels, the filters of the plain convolution, and its padding."""
    groups, more = call.args["groups"], _each(call.args["output_padding"], x.ndim - 2)
    C, K, *taps = weight.shape
    spread = np.zeros((*x.shape[:2], *((n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True))), x.dtype)
    spread[(slice(None), slice(None), *(slice(None, None, s) for s in stride))] = x
    swapped = weight.reshape(groups, C // groups, K, *taps).swapaxes(1, 2).reshape(groups * K, C // groups, *taps)
    flipped = swapped[(slice(None), slice(None), *[slice(None, None, -1)] * len(taps))]
    reach = [d * (n - 1) for d, n in zip(dilation, taps, strict=True)]
    sides = [(r - p, r - p + o) for r, (p, _), o in zip(reach, sides, more, strict=True)]
    if min(p for side in sides for p in side) < 0:
        raise NotJudged("a transposed convolution with more padding than taps")
    return spread, flipped, sides


def mm(call: Call) -> Question:
    return _linear(call, "self", "mat2", None)


def addmm(call: Call) -> Question:
    a = call.args
    bias = values(a["self"])
    if a["beta"] != 1 or a["alpha"] != 1 or bias.shape != tuple(call.outputs[0].shape[1:]):
        raise NotJudged("scaled, or added to a matrix")
    return _linear(call, "mat1", "mat2", bias)


def _linear(call: Call, x: str, weight: str, bias) -> Question:
    rows = call.chosen(len(call.args[x]))
    inputs = {"x": values(call.args[x])[rows], "weight": values(call.args[weight]).T, "bias": bias}
    return question(call, "linear", inputs, {}, lambda y: y[rows])


def group_norm(call: Call) -> Question:
    """The page has pictures: other shapes are one column of pixels."""
    a = call.args
    x, C = values(a["input"]), a["C"]
    shape = x.shape if x.ndim == 4 else (a["N"], C, a["HxW"], 1)
    inputs = {"x": x.reshape(shape)} | _affine(a, (C,))
    params = {"num_groups": a["group"], "eps": a["eps"]}
    return question(call, "group_norm", inputs, params, lambda y: y.reshape(shape))


def _affine(a, shape) -> dict[str, np.ndarray]:
    weight = np.ones(shape, np.float32) if a["weight"] is None else values(a["weight"])
    bias = np.zeros(shape, np.float32) if a["bias"] is None else values(a["bias"])
    return {"weight": weight.reshape(shape), "bias": bias.reshape(shape)}


def layer_norm(call: Call) -> Question:
    a = call.args
    D = math.prod(a["normalized_shape"])
    affine = {} if a["weight"] is None and a["bias"] is None else _affine(a, (D,))
    return _rows(call, "layer_norm", D, affine, a["eps"])


def rms_norm(call: Call) -> Question:
    a = call.args
    D = math.prod(a["normalized_shape"])
    weight = {} if a["weight"] is None else {"weight": values(a["weight"]).reshape(D)}
    if a["eps"] is None:
        torch = importlib.import_module("torch")
        return _rows(call, "rms_norm", D, weight, torch.finfo(a["input"].dtype).eps)
    return _rows(call, "rms_norm", D, weight, a["eps"])


def _rows(call: Call, op: str, D: int, affine, eps: float) -> Question:
    """Rows of D numbers; a page with tokens [N, L, D] takes them as one item."""
    x = values(call.args["input"])
    shape = (1, x.size // D, D)
    inputs = {"x": x.reshape(shape), **affine}
    return question(call, op, inputs, {"eps": eps}, lambda y: y.reshape(shape))


def softmax(call: Call) -> Question:
    """A row of -inf alone gives NaN in torch, zeros on the page and in _safe_softmax.

    Along another axis than the last torch stores the exponentials in the output before it divides.
    """
    x, dim = values(call.args["self"]), call.args["dim"]
    if x.ndim == 0:
        raise NotJudged("a softmax of one number")
    stored = None if dim % x.ndim == x.ndim - 1 else lambda y: 2 * np.abs(y)
    x = np.moveaxis(x, dim, -1)

    def laid_out(y):
        y = np.moveaxis(y, dim, -1)
        hidden = np.isneginf(x.astype(np.float32)).all(axis=-1, keepdims=True)
        return np.where(hidden & np.isnan(y.astype(np.float32)), 0, y).astype(y.dtype) if hidden.any() else y

    return question(call, "softmax", {"x": x}, {}, laid_out)._replace(stored=stored)


def attention(call: Call) -> Question:
    """torch has heads before tokens; the page has [B, L, H, D]."""
    a = call.args
    if a.get("dropout_p"):
        raise NotJudged("dropout: the mask is random")
    mask = next((a[name] for name in ("attn_mask", "attn_bias") if a.get(name) is not None), None)
    inputs = {
        short: values(a[name]).swapaxes(1, 2) for short, name in zip("qkv", ("query", "key", "value"), strict=True)
    }
    causal = bool(a.get("is_causal", False))
    rows = slice(None) if causal else call.chosen(inputs["q"].shape[1])
    inputs["q"] = inputs["q"][:, rows]
    if mask is not None:
        mask = values(mask)
        mask = mask[..., rows, :] if mask.ndim > 1 and mask.shape[-2] > 1 else mask
        if mask.dtype == bool:
            mask = np.where(mask, np.float32(0), np.float32(-np.inf))
        inputs["mask"] = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    params = {"scale": a.get("scale"), "causal": causal}
    return question(call, "attention", inputs, params, lambda y: y.swapaxes(1, 2)[:, rows])


def batch_norm(call: Call) -> Question:
    """Normalise by the running statistics; the page has no weight and bias."""
    a = call.args
    x = values(a["input"])
    if a.get("training") or a["weight"] is not None or a["bias"] is not None or x.ndim < 2:
        raise NotJudged("batch normalisation with weights or in training")
    shape = (*x.shape[:2], math.prod(x.shape[2:]), 1)
    inputs = {"x": x.reshape(shape), "mean": values(a["running_mean"]), "var": values(a["running_var"])}
    return question(call, "batch_norm", inputs, {"eps": a["eps"]}, lambda y: y.reshape(shape))


def _activation(op: str) -> Callable[[Call], Question]:
    return lambda call: question(call, op, {"x": np.atleast_1d(values(call.args["self"]))}, {}, np.atleast_1d)


def gelu(call: Call) -> Question:
    return _activation("gelu_tanh" if call.args["approximate"] == "tanh" else "gelu")(call)


def _resize(op: str, **convention) -> Rule:
    def rule(call: Call) -> Question:
        a = call.args
        x, (height, width) = values(a["self"]), a["output_size"]
        params = {"height": height, "width": width}
        scales = tuple(
            a.get(name) or new / old
            for name, new, old in zip(("scales_h", "scales_w"), (height, width), x.shape[2:], strict=True)
        )
        between = any(old * f != new for old, f, new in zip(x.shape[2:], scales, (height, width), strict=True))
        if "align_corners" in a:
            params |= {"align_corners": a["align_corners"]} | convention
            if between and not a["align_corners"]:
                params["factors"] = scales
        elif between:
            raise NotJudged("nearest by a factor that does not divide the size")
        return question(call, op, {"x": x}, params)

    return rule


PAGES: dict[str, Rule] = {
    "convolution": convolution,
    "mm": mm,
    "addmm": addmm,
    "native_group_norm": group_norm,
    "native_layer_norm": layer_norm,
    "_fused_rms_norm": rms_norm,
    "_softmax": softmax,
    "_safe_softmax": softmax,
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention": attention,
    "_scaled_dot_product_efficient_attention": attention,
    "_scaled_dot_product_cudnn_attention": attention,
    "native_batch_norm": batch_norm,
    "_native_batch_norm_legit_no_training": batch_norm,
    "silu": _activation("silu"),
    "gelu": gelu,
    "sigmoid": _activation("sigmoid"),
    "tanh": _activation("tanh"),
    "relu": _activation("relu"),
    "upsample_nearest2d": _resize("resize_nearest"),
    "_upsample_nearest_exact2d": _resize("resize_nearest_exact"),
    "upsample_bilinear2d": _resize("resize_bilinear"),
    "_upsample_bilinear2d_aa": _resize("resize_bilinear", antialias=True),
    "upsample_bicubic2d": _resize("resize_bicubic"),
    "_upsample_bicubic2d_aa": _resize("resize_bicubic", antialias=True),
}
