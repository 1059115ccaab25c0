"""Benchmark rows for attention: SD 1.5's first level, Flux, SD 1.5's second level; batch 1."""

import numpy as np

from refsd.bench.ggml_graphs import GgmlTools
from refsd.bench.row import Column, Row, computes, normal

# L (= J), H, D
SIZES = ((4096, 8, 40), (1280, 24, 128), (1024, 8, 80))


def _row(L: int, H: int, D: int) -> Row:
    q, k, v = (lambda name=name: normal(name, 1, L, H, D) for name in "qkv")

    def refsd(_):
        from refsd.kernels.attention_online import attention_online

        inputs = q(), k(), v()
        return computes(lambda: attention_online(*inputs, D**-0.5))

    def torch_sdpa(torch):
        inputs = [torch.from_numpy(t()).transpose(1, 2).contiguous() for t in (q, k, v)]
        attend = torch.nn.functional.scaled_dot_product_attention
        return computes(lambda: attend(*inputs), lambda y: y.transpose(1, 2).numpy())

    def ggml_flash(tools: GgmlTools):
        return tools.ready(
            "attention", {"q": q(), "k": k(), "v": v()}, {"scale": None, "causal": False}, flash=True
        )

    def truth():
        from refsd.kernels.attention_online import attention_online

        wide = [t().astype(np.float64) for t in (q, k, v)]
        return attention_online(wide[0], wide[1], wide[2], D**-0.5)

    columns = {
        "refsd": Column(("refsd",), refsd),
        "torch SDPA": Column(("torch",), torch_sdpa),
        "ggml flash f16": Column(("ggml", "ggml-llamafile"), ggml_flash),
    }
    return Row(f"attention/L {L} H {H} D {D}", columns, truth)


ROWS = [_row(*size) for size in SIZES]
