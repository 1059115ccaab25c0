"""Normalisations."""

from refsd.golden.operations.operation import IMAGE, ROWS, Operation, entry, optional, values
from refsd.kernels.batch_norm import batch_norm
from refsd.kernels.l2_norm import l2_norm


def _group_norm(a, inputs, params):
    weight, bias = a.expand(inputs["weight"]), a.expand(inputs["bias"])
    return a.group_norm(values(a, inputs["x"]), weight, bias, params["num_groups"], params["eps"])


def _layer_norm(a, inputs, params):
    weight, bias = optional(a, inputs, "weight"), optional(a, inputs, "bias")
    return a.layer_norm(values(a, inputs["x"]), weight, bias, params["eps"])


def _rms_norm(a, inputs, params):
    return a.rms_norm(values(a, inputs["x"]), optional(a, inputs, "weight"), params["eps"])


def _l2_norm(a, inputs, params):
    x = values(a, inputs["x"])
    return a.apply(l2_norm, x.reshape(-1, x.shape[-1]), eps=params["eps"]).reshape(x.shape)


def _batch_norm(a, inputs, params):
    return a.apply(batch_norm, *(values(a, inputs[name]) for name in ("x", "mean", "var")), eps=params["eps"])


def _group_norm_silu(a, inputs, params):
    weight, bias = a.expand(inputs["weight"]), a.expand(inputs["bias"])
    return a.group_norm_silu(values(a, inputs["x"]), weight, bias, params["num_groups"], params["eps"])


def _modulate(a, inputs, params):
    return a.modulate(*(values(a, inputs[name]) for name in ("x", "shift", "scale")))


def _adaptive_layer_norm(a, inputs, params):
    return a.adaptive_layer_norm(*(values(a, inputs[name]) for name in ("x", "shift", "scale")), params["eps"])


def _gated_add(a, inputs, params):
    return a.gated_add(*(values(a, inputs[name]) for name in ("x", "h", "gate")))


_TOKENS = "[N, L, D]"

OPERATIONS: dict[str, Operation] = {
    "group_norm": entry(
        _group_norm,
        "Normalise each group of channels, scale and shift each channel.",
        {"x": IMAGE, "weight": "[C]", "bias": "[C]"},
        IMAGE,
        channel=1,
        num_groups=32,
        eps=1e-5,
    ),
    "layer_norm": entry(
        _layer_norm,
        "Normalise each row to zero mean and unit variance.",
        {"x": ROWS, "weight?": "[D]", "bias?": "[D]"},
        ROWS,
        eps=1e-5,
    ),
    "rms_norm": entry(
        _rms_norm,
        "Scale each row to unit mean square.",
        {"x": ROWS, "weight?": "[D]"},
        ROWS,
        eps=1e-6,
    ),
    "l2_norm": entry(
        _l2_norm,
        "Scale each row to length one; a row shorter than eps is divided by eps.",
        {"x": ROWS},
        ROWS,
        eps=1e-12,
    ),
    "batch_norm": entry(
        _batch_norm,
        "Normalise each channel by a given mean and variance.",
        {"x": IMAGE, "mean": "[C]", "var": "[C]"},
        IMAGE,
        channel=1,
        eps=1e-5,
    ),
    "group_norm_silu": entry(
        _group_norm_silu,
        "Group normalisation, then SiLU.",
        {"x": IMAGE, "weight": "[C]", "bias": "[C]"},
        IMAGE,
        channel=1,
        num_groups=32,
        eps=1e-5,
    ),
    "modulate": entry(
        _modulate,
        "x * (1 + scale) + shift, an item's tokens alike.",
        {"x": _TOKENS, "shift": "[N, D]", "scale": "[N, D]"},
        _TOKENS,
    ),
    "adaptive_layer_norm": entry(
        _adaptive_layer_norm,
        "Layer normalisation without weights, then modulate.",
        {"x": _TOKENS, "shift": "[N, D]", "scale": "[N, D]"},
        _TOKENS,
        eps=1e-6,
    ),
    "gated_add": entry(
        _gated_add,
        "x + gate * h, an item's tokens alike.",
        {"x": _TOKENS, "h": _TOKENS, "gate": "[N, D]"},
        _TOKENS,
    ),
}
