"""Embedding lookup and dequantization as ggml graphs."""

import numpy as np

from refsd.engines.ggml.graph import Graph, Result
from refsd.engines.ggml.ops.builder import Builder, Inputs, Params
from refsd.numerics.tensor import stored


def _embedding(g: Graph, inputs: Inputs, params: Params) -> Result:
    ids, weight = inputs["ids"], inputs["weight"]
    y = g.get_rows(g.put(weight), g.put(ids, (ids.data.size,)))
    return Result(y, (*ids.shape, weight.shape[1]))


def _dequantize(g: Graph, inputs: Inputs, params: Params) -> Result:
    x = inputs["x"]
    rows = int(np.prod(x.shape[:-1]))
    every = g.put(stored(np.arange(rows, dtype=np.int32)))
    return Result(g.get_rows(g.put(x, (rows, x.shape[-1])), every), x.shape)


BUILDERS: dict[str, Builder] = {
    "embedding": Builder(_embedding, ("ggml_get_rows",)),
    "dequantize": Builder(_dequantize, ("ggml_get_rows",)),
}
