"""Resampling as ggml graphs."""

from refsd.golden.engines.ggml_graph import Graph, Result
from refsd.golden.engines.ggml_ops.builder import Builder, Inputs, Params


def _upsample_nearest(g: Graph, inputs: Inputs, params: Params) -> Result:
    N, C, H, W = inputs["x"].shape
    factor = params["factor"]
    return Result(g.upscale(g.floats(inputs["x"]), factor, 0), (N, C, H * factor, W * factor))


BUILDERS: dict[str, Builder] = {
    "upsample_nearest": Builder(_upsample_nearest, ("ggml_upscale",)),
}
