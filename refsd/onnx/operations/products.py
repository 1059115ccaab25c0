"""Linear layers as ONNX nodes."""

from refsd.onnx.operations.function import Function


def linear(b, x, weight, bias=None):
    """x: [..., I]; weight: [O, I], as a checkpoint has it -> [..., O]. As torch.onnx: Gemm where x is a matrix."""
    if len(x.shape) == 2:
        return b.node("Gemm", x, weight, bias, transB=1)
    y = b.node("MatMul", x, b.transpose(weight, (1, 0)))
    return y if bias is None else b.node("Add", y, bias)


FUNCTIONS: dict[str, Function] = {
    "linear": lambda b, x, params: linear(b, x["x"], x["weight"], x.get("bias")),
}
