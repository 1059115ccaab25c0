"""Activations by Tensor's methods."""

from refsd.engines.arrays.function import Function


def _geglu(tinygrad, x, params):
    value, gate = x["x"].chunk(2, dim=-1)
    return value * gate.gelu("none")


def _swiglu(tinygrad, x, params):
    first, second = x["x"].chunk(2, dim=-1)
    return first * second.silu() if params["second_gates"] else first.silu() * second


def _swiglu_oai(tinygrad, x, params):
    """As openai/gpt-oss writes it."""
    gate = x["gate"].minimum(params["limit"])
    value = x["value"].clip(-params["limit"], params["limit"])
    return gate * (params["alpha"] * gate).sigmoid() * (value + 1)


FUNCTIONS: dict[str, Function] = {
    "silu": lambda tinygrad, x, params: x["x"].silu(),
    "gelu": lambda tinygrad, x, params: x["x"].gelu("none"),
    "gelu_tanh": lambda tinygrad, x, params: x["x"].gelu("tanh"),
    "quick_gelu": lambda tinygrad, x, params: x["x"].quick_gelu(),
    "geglu": _geglu,
    "sigmoid": lambda tinygrad, x, params: x["x"].sigmoid(),
    "tanh": lambda tinygrad, x, params: x["x"].tanh(),
    "relu": lambda tinygrad, x, params: x["x"].relu(),
    "leaky_relu": lambda tinygrad, x, params: x["x"].leaky_relu(params["slope"]),
    "swiglu": _swiglu,
    "swiglu_oai": _swiglu_oai,
}
