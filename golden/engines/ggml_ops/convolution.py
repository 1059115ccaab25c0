"""Convolutions and their patches as ggml graphs."""

import numpy as np

from refsd.golden.engines.ggml_graph import SCALAR_IDS, Graph, Result
from refsd.golden.engines.ggml_ops.builder import Builder, Inputs, Params
from refsd.golden.tensor import stored


def _padded(g: Graph, x: int, padding) -> tuple[int, int, int]:
    """x, and the padding in W and H that is left to the convolution itself."""
    top, bottom, left, right = padding
    if top == bottom and left == right:
        return x, left, top
    if top == left == 0:
        return g.pad(x, right, bottom, 0, 0), 0, 0
    return g.pad_ext(x, left, right, top, bottom, 0, 0, 0, 0), 0, 0


def _positions(size: int, before: int, after: int, taps: int, stride: int) -> int:
    return (size + before + after - taps) // stride + 1


def _conv2d(g: Graph, inputs: Inputs, params: Params) -> Result:
    x, weight, stride = inputs["x"], inputs["weight"], params["stride"]
    N, _, H, W = x.shape
    K, _, R, S = weight.shape
    top, bottom, left, right = params["padding"]
    image, pad_w, pad_h = _padded(g, g.floats(x), params["padding"])
    y = g.conv_2d(g.put(weight), image, stride, stride, pad_w, pad_h, 1, 1)
    if "bias" in inputs:
        y = g.add(y, g.floats(inputs["bias"], (1, K, 1, 1)))
    return Result(y, (N, K, _positions(H, top, bottom, R, stride), _positions(W, left, right, S, stride)))


def _im2col(g: Graph, inputs: Inputs, params: Params) -> Result:
    x, stride = inputs["x"], params["stride"]
    N, C, H, W = x.shape
    R, S = params["kernel"]
    top, bottom, left, right = params["padding"]
    image, pad_w, pad_h = _padded(g, g.floats(x), params["padding"])
    # The filter gives only its shape.
    filter_shape = g.put(stored(np.zeros((1, C, R, S), np.float16)))
    cols = g.im2col(filter_shape, image, stride, stride, pad_w, pad_h, 1, 1, True, SCALAR_IDS["f16"])
    P, Q = _positions(H, top, bottom, R, stride), _positions(W, left, right, S, stride)
    return Result(cols, (N, P * Q, C * R * S), np.float16)


BUILDERS: dict[str, Builder] = {
    "conv2d": Builder(_conv2d, ("ggml_conv_2d",)),
    "im2col": Builder(_im2col, ("ggml_im2col",)),
}
