"""Benchmark rows for conv2d: the five layers of the Winograd paper for stable-diffusion.cpp.

The filters are 3x3, with stride 1 and padding 1; the batch is one image.
"""

import numpy as np

from refsd.bench.ggml_graphs import GgmlTools
from refsd.bench.row import Column, Row, computes, normal

# C, K, side of the image. Source: SealAI's fork of stable-diffusion.cpp, table of single layers.
LAYERS = ((640, 640, 32), (1280, 1280, 16), (2560, 1280, 16), (320, 320, 64), (640, 320, 64))
PADDING = (1, 1, 1, 1)


def _row(C: int, K: int, side: int) -> Row:
    name = f"convolution/{C} to {K}, {side}x{side}"
    image = lambda: normal("image", 1, C, side, side)
    weight = lambda: normal("filters", K, C, 3, 3, scale=(9 * C) ** -0.5)
    bias = lambda: normal("bias", K)

    def refsd(_):
        from refsd.kernels.conv2d_fast import choose, conv2d_fast, prepare

        x, b = image(), bias()
        choice = choose(x.shape, (K, C, 3, 3), 1, PADDING)
        filters = prepare(weight(), choice)
        return computes(lambda: conv2d_fast(x, filters, b, 1, PADDING), algorithm=choice.name, why=choice.why)

    def torch_nchw(torch):
        return _torch(torch, torch.contiguous_format)

    def torch_nhwc(torch):
        return _torch(torch, torch.channels_last)

    def _torch(torch, layout):
        x, w, b = (torch.from_numpy(a) for a in (image(), weight(), bias()))
        x, w = x.contiguous(memory_format=layout), w.contiguous(memory_format=layout)
        return computes(lambda: torch.nn.functional.conv2d(x, w, b, padding=1))

    def ggml(tools: GgmlTools):
        inputs = {"x": image(), "weight": weight().astype(np.float16), "bias": bias()}
        return tools.ready("conv2d", inputs, {"stride": 1, "padding": PADDING})

    def truth():
        from refsd.kernels.conv2d_im2col import conv2d_im2col

        x, w, b = (a.astype(np.float64) for a in (image(), weight(), bias()))
        return conv2d_im2col(x, w, b, 1, PADDING)

    columns = {
        "refsd": Column(("refsd",), refsd),
        "torch": Column(("torch",), torch_nchw),
        "torch channels_last": Column(("torch",), torch_nhwc),
        "ggml f16": Column(("ggml",), ggml),
        "ggml f16, llamafile": Column(("ggml-llamafile",), ggml),
    }
    return Row(name, columns, truth)


ROWS = [_row(*layer) for layer in LAYERS]
