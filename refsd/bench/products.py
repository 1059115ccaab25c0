"""Benchmark rows for the linear layer at the size of a Flux block: 4096 tokens, 3072 channels."""

import numpy as np

from refsd.bench.ggml_graphs import GgmlTools
from refsd.bench.row import Column, Row, computes, normal

# M, K, O
SIZES = ((4096, 3072, 3072),)


def _row(M: int, K: int, O: int) -> Row:
    x = lambda: normal("x", M, K)
    weight = lambda: normal("weight", O, K, scale=K**-0.5)
    bias = lambda: normal("bias", O)

    def refsd(_):
        from refsd.kernels.linear import linear

        inputs = x(), weight(), bias()
        return computes(lambda: linear(*inputs))

    def torch_linear(torch):
        inputs = [torch.from_numpy(a) for a in (x(), weight(), bias())]
        return computes(lambda: torch.nn.functional.linear(*inputs))

    def torch_mm(torch):
        a, w, b = (torch.from_numpy(a) for a in (x(), weight(), bias()))
        right = w.T.contiguous()
        return computes(lambda: torch.mm(a, right), lambda y: (y + b).numpy())

    def ggml(tools: GgmlTools):
        return tools.ready("linear", {"x": x(), "weight": weight().astype(np.float16), "bias": bias()}, {})

    def truth():
        return x().astype(np.float64) @ weight().astype(np.float64).T + bias()

    columns = {
        "refsd": Column(("refsd",), refsd),
        "torch F.linear": Column(("torch",), torch_linear),
        "torch mm": Column(("torch",), torch_mm),
        "ggml f16": Column(("ggml",), ggml),
        "ggml f16, llamafile": Column(("ggml-llamafile",), ggml),
    }
    return Row(f"linear/({M}x{K}) x ({K}x{O})", columns, truth)


ROWS = [_row(*size) for size in SIZES]
