"""Normalisations as ONNX nodes."""

import numpy as np

from refsd.onnx.operations.activations import silu
from refsd.onnx.operations.function import Function


def _group_norm(b, x, params):
    how = {"num_groups": params["num_groups"], "epsilon": params["eps"]}
    return b.node("GroupNormalization", x["x"], x["weight"], x["bias"], **how)


def _layer_norm(b, x, params):
    one = b.constant(np.ones(x["x"].shape[-1:], x["x"].dtype))
    return b.node("LayerNormalization", x["x"], x.get("weight", one), x.get("bias"), axis=-1, epsilon=params["eps"])


def _rms_norm(b, x, params):
    """RMSNormalization is of opset 23."""
    square = b.node("ReduceMean", b.node("Mul", x["x"], x["x"]), [-1])
    y = b.node("Div", x["x"], b.node("Sqrt", b.node("Add", square, params["eps"])))
    return b.node("Mul", y, x["weight"]) if "weight" in x else y


def _l2_norm(b, x, params):
    """LpNormalization has no eps."""
    return b.node("Div", x["x"], b.node("Max", b.node("ReduceL2", x["x"], [-1]), params["eps"]))


def _rms_norm_channels(b, x, params):
    length = b.node("Max", b.node("ReduceL2", x["x"], [1]), params["eps"])
    unit = b.node("Mul", b.node("Div", x["x"], length), x["x"].shape[1] ** 0.5)
    return b.node("Mul", unit, b.reshape(x["weight"], (-1, *[1] * (len(x["x"].shape) - 2))))


def _batch_norm(b, x, params):
    one, zero = (b.constant(make(x["x"].shape[1], x["x"].dtype)) for make in (np.ones, np.zeros))
    return b.node("BatchNormalization", x["x"], one, zero, x["mean"], x["var"], epsilon=params["eps"])


def _modulated(b, y, x):
    """scale, shift: [N, D], for each token"""
    scale, shift = (b.node("Unsqueeze", x[name], [1]) for name in ("scale", "shift"))
    return b.node("Add", b.node("Mul", y, b.node("Add", scale, 1.0)), shift)


def _gated_add(b, x, params):
    return b.node("Add", x["x"], b.node("Mul", b.node("Unsqueeze", x["gate"], [1]), x["h"]))


FUNCTIONS: dict[str, Function] = {
    "group_norm": _group_norm,
    "group_norm_silu": lambda b, x, params: silu(b, _group_norm(b, x, params)),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "l2_norm": _l2_norm,
    "rms_norm_channels": _rms_norm_channels,
    "batch_norm": _batch_norm,
    "modulate": lambda b, x, params: _modulated(b, x["x"], x),
    "adaptive_layer_norm": lambda b, x, params: _modulated(b, _layer_norm(b, {"x": x["x"]}, params), x),
    "gated_add": _gated_add,
}
