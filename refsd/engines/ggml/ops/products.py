"""Linear layers as ggml graphs."""

from refsd.engines.ggml.graph import Graph, Result
from refsd.engines.ggml.ops.builder import Builder, Inputs, Params


def _linear(g: Graph, inputs: Inputs, params: Params) -> Result:
    x, weight = inputs["x"], inputs["weight"]
    K = x.shape[-1]
    y = g.mul_mat(g.put(weight), g.floats(x, (x.values().size // K, K)))
    if "bias" in inputs:
        y = g.add(y, g.floats(inputs["bias"]))
    return Result(y, (*x.shape[:-1], weight.shape[0]))


BUILDERS: dict[str, Builder] = {
    "linear": Builder(_linear, ("ggml_mul_mat",)),
}
