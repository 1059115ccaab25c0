"""Storage types: what is looked up and expanded, as ONNX nodes."""

from refsd.onnx.operations.function import Function

FUNCTIONS: dict[str, Function] = {
    "embedding": lambda b, x, params: b.node("Gather", x["weight"], x["ids"], axis=0),
    # The expansion is the weight's own: refsd/onnx/weights.py.
    "dequantize": lambda b, x, params: x["x"],
}
