"""Normalisations."""

from refsd.golden.operations.operation import IMAGE, ROWS, Operation, entry, optional, values


def _group_norm(a, inputs, params):
    weight, bias = a.expand(inputs["weight"]), a.expand(inputs["bias"])
    return a.group_norm(values(a, inputs["x"]), weight, bias, params["num_groups"], params["eps"])


def _layer_norm(a, inputs, params):
    weight, bias = optional(a, inputs, "weight"), optional(a, inputs, "bias")
    return a.layer_norm(values(a, inputs["x"]), weight, bias, params["eps"])


def _rms_norm(a, inputs, params):
    return a.rms_norm(values(a, inputs["x"]), a.expand(inputs["weight"]), params["eps"])


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
        {"x": ROWS, "weight": "[D]"},
        ROWS,
        eps=1e-6,
    ),
}
