"""Normalisations as ggml graphs."""

import math

from refsd.engines.ggml.graph import Graph, Result
from refsd.engines.ggml.ops.builder import Builder, Inputs, Params


def _group_norm(g: Graph, inputs: Inputs, params: Params) -> Result:
    shape = inputs["x"].shape
    y = g.group_norm(g.floats(inputs["x"]), params["num_groups"], params["eps"])
    channels = (1, shape[1], 1, 1)
    return Result(g.add(g.mul(y, g.floats(inputs["weight"], channels)), g.floats(inputs["bias"], channels)), shape)


def _layer_norm(g: Graph, inputs: Inputs, params: Params) -> Result:
    y = g.norm(g.floats(inputs["x"]), params["eps"])
    if "weight" in inputs:
        y = g.mul(y, g.floats(inputs["weight"]))
    if "bias" in inputs:
        y = g.add(y, g.floats(inputs["bias"]))
    return Result(y, inputs["x"].shape)


def _rms_norm(g: Graph, inputs: Inputs, params: Params) -> Result:
    y = g.rms_norm(g.floats(inputs["x"]), params["eps"])
    return Result(g.mul(y, g.floats(inputs["weight"])) if "weight" in inputs else y, inputs["x"].shape)


def _l2_norm(g: Graph, inputs: Inputs, params: Params) -> Result:
    return Result(g.l2_norm(g.floats(inputs["x"]), params["eps"]), inputs["x"].shape)


def _rms_norm_channels(g: Graph, inputs: Inputs, params: Params) -> Result:
    """As stable-diffusion.cpp has Wan's: channels are permuted to rows and back."""
    N, C, *pixels = inputs["x"].shape
    rows = g.cont(g.permute(g.floats(inputs["x"], (N, 1, C, math.prod(pixels))), 1, 0, 2, 3))
    y = g.mul(g.scale(g.l2_norm(rows, params["eps"]), C**0.5), g.floats(inputs["weight"]))
    return Result(g.cont(g.permute(y, 1, 0, 2, 3)), inputs["x"].shape)


def _group_norm_silu(g: Graph, inputs: Inputs, params: Params) -> Result:
    normalised = _group_norm(g, inputs, params)
    return normalised._replace(tensor=g.silu(normalised.tensor))


def _per_item(g: Graph, inputs: Inputs, name: str) -> int:
    N, D = inputs[name].shape
    return g.floats(inputs[name], (N, 1, D))


def _modulated(g: Graph, y: int, inputs: Inputs) -> Result:
    y = g.add(y, g.mul(y, _per_item(g, inputs, "scale")))
    return Result(g.add(y, _per_item(g, inputs, "shift")), inputs["x"].shape)


def _adaptive_layer_norm(g: Graph, inputs: Inputs, params: Params) -> Result:
    return _modulated(g, g.norm(g.floats(inputs["x"]), params["eps"]), inputs)


def _gated_add(g: Graph, inputs: Inputs, params: Params) -> Result:
    h = g.mul(g.floats(inputs["h"]), _per_item(g, inputs, "gate"))
    return Result(g.add(g.floats(inputs["x"]), h), inputs["x"].shape)


BUILDERS: dict[str, Builder] = {
    "group_norm": Builder(_group_norm, ("ggml_group_norm",)),
    "layer_norm": Builder(_layer_norm, ("ggml_norm",)),
    "rms_norm": Builder(_rms_norm, ("ggml_rms_norm",)),
    "l2_norm": Builder(_l2_norm, ("ggml_l2_norm",)),
    "rms_norm_channels": Builder(_rms_norm_channels, ("ggml_l2_norm", "ggml_permute")),
    "group_norm_silu": Builder(_group_norm_silu, ("ggml_group_norm",)),
    "modulate": Builder(lambda g, inputs, params: _modulated(g, g.floats(inputs["x"]), inputs), ("ggml_add",)),
    "adaptive_layer_norm": Builder(_adaptive_layer_norm, ("ggml_norm",)),
    "gated_add": Builder(_gated_add, ("ggml_add",)),
}
