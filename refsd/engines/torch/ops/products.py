"""Linear layers by torch."""

from refsd.engines.torch.ops.function import Function


def _linear(torch, x, params):
    return torch.nn.functional.linear(x["x"], x["weight"], x.get("bias"))


FUNCTIONS: dict[str, Function] = {
    "linear": _linear,
}
