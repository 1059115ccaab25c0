"""Normalisations as ggml graphs."""

from refsd.golden.engines.ggml_graph import Graph, Result
from refsd.golden.engines.ggml_ops.builder import Builder, Inputs, Params


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
    y = g.mul(g.rms_norm(g.floats(inputs["x"]), params["eps"]), g.floats(inputs["weight"]))
    return Result(y, inputs["x"].shape)


BUILDERS: dict[str, Builder] = {
    "group_norm": Builder(_group_norm, ("ggml_group_norm",)),
    "layer_norm": Builder(_layer_norm, ("ggml_norm",)),
    "rms_norm": Builder(_rms_norm, ("ggml_rms_norm",)),
}
