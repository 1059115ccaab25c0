"""Activations by torch."""

from refsd.golden.engines.torch_ops.function import Function


def _geglu(torch, x, params):
    value, gate = x["x"].chunk(2, dim=-1)
    return value * torch.nn.functional.gelu(gate)


FUNCTIONS: dict[str, Function] = {
    "silu": lambda torch, x, params: torch.nn.functional.silu(x["x"]),
    "gelu": lambda torch, x, params: torch.nn.functional.gelu(x["x"]),
    "gelu_tanh": lambda torch, x, params: torch.nn.functional.gelu(x["x"], approximate="tanh"),
    "quick_gelu": lambda torch, x, params: x["x"] * torch.sigmoid(1.702 * x["x"]),
    "geglu": _geglu,
}
