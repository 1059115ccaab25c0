"""Activations as ONNX nodes."""

from refsd.onnx.operations.function import Function


def silu(b, x):
    return b.node("Mul", x, b.node("Sigmoid", x))


def _one(op: str, **attributes) -> Function:
    return lambda b, x, params: b.node(op, x["x"], **attributes)


def _geglu(b, x, params):
    value, gate = b.halves(x["x"])
    return b.node("Mul", value, b.node("Gelu", gate))


def _swiglu(b, x, params):
    first, second = b.halves(x["x"])
    gate, value = (second, first) if params["second_gates"] else (first, second)
    return b.node("Mul", silu(b, gate), value)


def _swiglu_oai(b, x, params):
    gate = b.node("Min", x["gate"], params["limit"])
    value = b.node("Clip", x["value"], -params["limit"], params["limit"])
    activated = b.node("Mul", gate, b.node("Sigmoid", b.node("Mul", gate, params["alpha"])))
    return b.node("Mul", activated, b.node("Add", value, 1.0))


FUNCTIONS: dict[str, Function] = {
    "silu": lambda b, x, params: silu(b, x["x"]),
    "gelu": _one("Gelu"),
    "gelu_tanh": _one("Gelu", approximate="tanh"),
    "quick_gelu": lambda b, x, params: b.node("Mul", x["x"], b.node("Sigmoid", b.node("Mul", x["x"], 1.702))),
    "sigmoid": _one("Sigmoid"),
    "tanh": _one("Tanh"),
    "relu": _one("Relu"),
    "leaky_relu": lambda b, x, params: b.node("LeakyRelu", x["x"], alpha=params["slope"]),
    "geglu": _geglu,
    "swiglu": _swiglu,
    "swiglu_oai": _swiglu_oai,
}
