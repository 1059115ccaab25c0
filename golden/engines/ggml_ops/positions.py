"""Embeddings of position and time as ggml graphs."""

from refsd.golden.engines.ggml_graph import Graph, Result
from refsd.golden.engines.ggml_ops.builder import Builder, Inputs, Params


def _timestep_embedding(g: Graph, inputs: Inputs, params: Params) -> Result:
    y = g.timestep_embedding(g.floats(inputs["t"]), params["dim"], int(params["max_period"]))
    return Result(y, (inputs["t"].shape[0], params["dim"]))


BUILDERS: dict[str, Builder] = {
    "timestep_embedding": Builder(_timestep_embedding, ("ggml_timestep_embedding",)),
}
