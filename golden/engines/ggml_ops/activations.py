"""Activations as ggml graphs."""

from collections.abc import Callable

from refsd.golden.engines.ggml_graph import Graph, Result
from refsd.golden.engines.ggml_ops.builder import Builder, Inputs, Params


def _unary(function: str) -> Callable[[Graph, Inputs, Params], Result]:
    def build(g: Graph, inputs: Inputs, params: Params) -> Result:
        return Result(getattr(g, function)(g.floats(inputs["x"])), inputs["x"].shape)

    return build


def _geglu(g: Graph, inputs: Inputs, params: Params) -> Result:
    shape = inputs["x"].shape
    return Result(g.geglu_erf_swapped(g.floats(inputs["x"])), (*shape[:-1], shape[-1] // 2))


BUILDERS: dict[str, Builder] = {
    "silu": Builder(_unary("silu"), ("ggml_silu",)),
    "gelu": Builder(_unary("gelu_erf"), ("ggml_gelu_erf",)),
    "gelu_tanh": Builder(_unary("gelu"), ("ggml_gelu",)),
    "quick_gelu": Builder(_unary("gelu_quick"), ("ggml_gelu_quick",)),
    "geglu": Builder(_geglu, ("ggml_geglu_erf_swapped",)),
}
