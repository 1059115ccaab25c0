"""RoPE and the timestep embedding as ggml graphs."""

from refsd.engines.ggml.graph import Graph, Result
from refsd.engines.ggml.ops.builder import Builder, Inputs, Params, Refusal
from refsd.golden.case import Case


def _timestep_embedding(g: Graph, inputs: Inputs, params: Params) -> Result:
    y = g.timestep_embedding(g.floats(inputs["t"]), params["dim"], int(params["max_period"]))
    return Result(y, (inputs["t"].shape[0], params["dim"]))


def _only_cosines_first(case: Case) -> str | None:
    plain = (
        not any(case.params.get(name) for name in ("freq_shift", "sin_first")) and case.params.get("scale", 1) == 1
    )
    return None if plain else "ggml_timestep_embedding has cosines first, no shift and no scale"


# GGML_ROPE_TYPE_NEOX in ggml.h: rotate element i with i + dim/2; mode 0 rotates neighbouring elements.
_NEOX = 2


def _rope(g: Graph, inputs: Inputs, params: Params) -> Result:
    x, ids = inputs["x"], inputs["ids"]
    (dim,) = params["axes_dim"]
    positions = g.put(ids, (ids.shape[1],))
    mode = _NEOX if params["halves"] else 0
    y = g.rope_ext(g.floats(x), positions, None, dim, mode, 0, params["theta"], 1.0, 0.0, 1.0, 0.0, 0.0)
    return Result(y, x.shape)


def _only_one_axis(case: Case) -> str | None:
    one = len(case.params["axes_dim"]) == 1 and case.inputs["ids"].shape[0] == 1
    return None if one else "ggml_rope_ext has one axis, and the same positions for every item"


BUILDERS: dict[str, Builder] = {
    "timestep_embedding": Builder(_timestep_embedding, ("ggml_timestep_embedding",)),
    "rope": Builder(_rope, ("ggml_rope_ext",)),
}
REFUSALS: dict[str, Refusal] = {"timestep_embedding": _only_cosines_first, "rope": _only_one_axis}
