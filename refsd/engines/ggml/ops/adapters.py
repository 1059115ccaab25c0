"""Adapters of linear layers as ggml graphs, in the order of stable-diffusion.cpp at run time: W2, then W1."""

import math

from refsd.engines.ggml.graph import Graph, Result
from refsd.engines.ggml.ops.builder import Builder, Inputs, Params
from refsd.golden.operations.adapter import lokr_ranks
from refsd.kernels.adapters.scales import alpha_over_rank, lokr_scale


def _lora(g: Graph, inputs: Inputs, params: Params) -> Result:
    x, down, up = (inputs[name] for name in ("x", "down", "up"))
    h = g.mul_mat(g.put(down), g.floats(x, (math.prod(x.shape[:-1]), x.shape[-1])))
    y = g.scale(g.mul_mat(g.put(up), h), alpha_over_rank(params["alpha"], down.shape[0]))
    return Result(y, (*x.shape[:-1], up.shape[0]))


def _lokr(g: Graph, inputs: Inputs, params: Params) -> Result:
    """View x as [tokens, I1, I2]. ggml multiplies the last axis, so transpose before and after W1."""
    x = inputs["x"]
    w1, w2 = ([inputs[w]] if w in inputs else [inputs[f"{w}_b"], inputs[f"{w}_a"]] for w in ("w1", "w2"))
    h = g.floats(x, (math.prod(x.shape[:-1]), w1[0].shape[1], w2[0].shape[1]))
    for weights in (w2, w1):
        for weight in weights:
            h = g.mul_mat(g.put(weight), h)
        h = g.cont(g.permute(h, 1, 0, 2, 3))
    y = g.scale(h, lokr_scale(params["alpha"], lokr_ranks(inputs)[0]))
    return Result(y, (*x.shape[:-1], w1[-1].shape[0] * w2[-1].shape[0]))


BUILDERS: dict[str, Builder] = {
    "lora": Builder(_lora, ("ggml_mul_mat", "ggml_scale")),
    "lokr": Builder(_lokr, ("ggml_mul_mat", "ggml_scale", "ggml_permute", "ggml_cont")),
}
