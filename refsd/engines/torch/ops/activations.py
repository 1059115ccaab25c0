"""Activations by torch."""

from refsd.engines.torch.ops.function import Function


def _geglu(torch, x, params):
    value, gate = x["x"].chunk(2, dim=-1)
    return value * torch.nn.functional.gelu(gate)


def _swiglu(torch, x, params):
    first, second = x["x"].chunk(2, dim=-1)
    silu = torch.nn.functional.silu
    return first * silu(second) if params["second_gates"] else silu(first) * second


def _swiglu_oai(torch, x, params):
    """In the form of openai/gpt-oss."""
    gate = x["gate"].clamp(max=params["limit"])
    value = x["value"].clamp(-params["limit"], params["limit"])
    return gate * torch.sigmoid(params["alpha"] * gate) * (value + 1)


FUNCTIONS: dict[str, Function] = {
    "silu": lambda torch, x, params: torch.nn.functional.silu(x["x"]),
    "gelu": lambda torch, x, params: torch.nn.functional.gelu(x["x"]),
    "gelu_tanh": lambda torch, x, params: torch.nn.functional.gelu(x["x"], approximate="tanh"),
    "quick_gelu": lambda torch, x, params: x["x"] * torch.sigmoid(1.702 * x["x"]),
    "geglu": _geglu,
    "sigmoid": lambda torch, x, params: torch.sigmoid(x["x"]),
    "tanh": lambda torch, x, params: torch.tanh(x["x"]),
    "relu": lambda torch, x, params: torch.relu(x["x"]),
    "leaky_relu": lambda torch, x, params: torch.nn.functional.leaky_relu(x["x"], params["slope"]),
    "swiglu": _swiglu,
    "swiglu_oai": _swiglu_oai,
}
