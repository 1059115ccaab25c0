"""Activations as ggml graphs."""

from collections.abc import Callable

from refsd.engines.ggml.graph import Graph, Result
from refsd.engines.ggml.ops.builder import Builder, Inputs, Params


def _unary(function: str) -> Callable[[Graph, Inputs, Params], Result]:
    def build(g: Graph, inputs: Inputs, params: Params) -> Result:
        return Result(getattr(g, function)(g.floats(inputs["x"])), inputs["x"].shape)

    return build


def _geglu(g: Graph, inputs: Inputs, params: Params) -> Result:
    shape = inputs["x"].shape
    return Result(g.geglu_erf_swapped(g.floats(inputs["x"])), (*shape[:-1], shape[-1] // 2))


def _leaky_relu(g: Graph, inputs: Inputs, params: Params) -> Result:
    return Result(g.leaky_relu(g.floats(inputs["x"]), params["slope"], False), inputs["x"].shape)


def _swiglu(g: Graph, inputs: Inputs, params: Params) -> Result:
    shape = inputs["x"].shape
    gate = g.swiglu_swapped if params["second_gates"] else g.swiglu
    return Result(gate(g.floats(inputs["x"])), (*shape[:-1], shape[-1] // 2))


def _swiglu_oai(g: Graph, inputs: Inputs, params: Params) -> Result:
    gate, value = (g.floats(inputs[name]) for name in ("gate", "value"))
    return Result(g.swiglu_oai(gate, value, params["alpha"], params["limit"]), inputs["gate"].shape)


BUILDERS: dict[str, Builder] = {
    "silu": Builder(_unary("silu"), ("ggml_silu",)),
    "gelu": Builder(_unary("gelu_erf"), ("ggml_gelu_erf",)),
    "gelu_tanh": Builder(_unary("gelu"), ("ggml_gelu",)),
    "quick_gelu": Builder(_unary("gelu_quick"), ("ggml_gelu_quick",)),
    "sigmoid": Builder(_unary("sigmoid"), ("ggml_sigmoid",)),
    "tanh": Builder(_unary("tanh"), ("ggml_tanh",)),
    "relu": Builder(_unary("relu"), ("ggml_relu",)),
    "leaky_relu": Builder(_leaky_relu, ("ggml_leaky_relu",)),
    "swiglu": Builder(_swiglu, ("ggml_swiglu", "ggml_swiglu_swapped")),
    "swiglu_oai": Builder(_swiglu_oai, ("ggml_swiglu_oai",)),
    "geglu": Builder(_geglu, ("ggml_geglu_erf_swapped",)),
}
