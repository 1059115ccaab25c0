"""Convolutions and im2col as ggml graphs."""

import math
from functools import partial

import numpy as np

from refsd.engines.ggml.graph import SCALAR_IDS, Graph, Result
from refsd.engines.ggml.ops.builder import Builder, Inputs, Params
from refsd.kernels.convolution_geometry import each, positions
from refsd.numerics.tensor import stored


def _padded(g: Graph, x: int, padding) -> tuple[int, int, int]:
    """Pad x if its padding is asymmetric. -> x, and the padding in W and H that the convolution must still add"""
    top, bottom, left, right = padding
    if top == bottom and left == right:
        return x, left, top
    if top == left == 0:
        return g.pad(x, right, bottom, 0, 0), 0, 0
    return g.pad_ext(x, left, right, top, bottom, 0, 0, 0, 0), 0, 0


def _conv2d(g: Graph, inputs: Inputs, params: Params, direct: bool = False) -> Result:
    """Build conv2d. Depthwise filters: float16 with ggml_conv_2d_dw, float32 with ggml_conv_2d_dw_direct."""
    x, weight = inputs["x"], inputs["weight"]
    (down, across), (high, wide) = each(params["stride"], 2), each(params["dilation"], 2)
    image, pad_w, pad_h = _padded(g, g.floats(x), params["padding"])
    function = g.conv_2d_direct if direct else g.conv_2d
    if params["groups"] > 1 and not direct:
        function = g.conv_2d_dw if weight.type == "f16" else g.conv_2d_dw_direct
    y = function(g.put(weight), image, across, down, pad_w, pad_h, wide, high)
    return _biased(g, y, inputs, (x.shape[0], weight.shape[0], *_positions(inputs, params, 2)))


def _volume(g: Graph, inputs: Inputs, params: Params) -> tuple[int, tuple[int, int, int], int]:
    """Pad x if its padding is asymmetric. -> x, the padding in W, H, D still to be added, the filters"""
    x, weight = inputs["x"], inputs["weight"]
    front, back, top, bottom, left, right = params["padding"]
    image, pads = g.floats(x, (x.shape[0] * x.shape[1], *x.shape[2:])), (left, top, front)
    if (front, top, left) != (back, bottom, right):
        image, pads = g.pad_ext(image, left, right, top, bottom, front, back, 0, 0), (0, 0, 0)
    return image, pads, g.put(weight, (weight.shape[0] * weight.shape[1], *weight.shape[2:]))


def _conv3d(g: Graph, inputs: Inputs, params: Params, direct: bool = False) -> Result:
    """Build conv3d. ggml's fourth axis holds batch x channels in the input, batch x filters in the result."""
    N, C = inputs["x"].shape[:2]
    K = inputs["weight"].shape[0]
    image, pads, filters = _volume(g, inputs, params)
    stride, dilation = each(params["stride"], 3), each(params["dilation"], 3)
    steps = *reversed(stride), *pads, *reversed(dilation)
    y = g.conv_3d_direct(filters, image, *steps, C, N, K) if direct else g.conv_3d(filters, image, C, *steps)
    return _biased(g, y, inputs, (N, K, *_positions(inputs, params, 3)))


def _biased(g: Graph, y: int, inputs: Inputs, shape: tuple[int, ...]) -> Result:
    if "bias" in inputs:
        N, K = shape[:2]
        rest = math.prod(shape[2:])
        y = g.add(g.reshape_4d(y, rest, K, N, 1), g.floats(inputs["bias"], (1, K, 1)))
    return Result(y, shape)


def _positions(inputs: Inputs, params: Params, axes: int) -> tuple[int, ...]:
    taps = inputs["weight"].shape[2:] if "weight" in inputs else params["kernel"]
    stride, dilation = each(params["stride"], axes), each(params["dilation"], axes)
    return positions(inputs["x"].shape[2:], params["padding"], taps, stride, dilation)


def _im2col(g: Graph, inputs: Inputs, params: Params) -> Result:
    x = inputs["x"]
    N, C = x.shape[:2]
    R, S = params["kernel"]
    (down, across), (high, wide) = each(params["stride"], 2), each(params["dilation"], 2)
    image, pad_w, pad_h = _padded(g, g.floats(x), params["padding"])
    # ggml_im2col reads only the filter's shape.
    filter_shape = g.put(stored(np.zeros((1, C, R, S), np.float16)))
    cols = g.im2col(filter_shape, image, across, down, pad_w, pad_h, wide, high, True, SCALAR_IDS["f16"])
    P, Q = _positions(inputs, params, 2)
    return Result(cols, (N, P * Q, C * R * S), np.float16)


BUILDERS: dict[str, Builder] = {
    "conv2d": Builder(_conv2d, ("ggml_conv_2d",)),
    "conv3d": Builder(_conv3d, ("ggml_conv_3d", "ggml_pad_ext")),
    "im2col": Builder(_im2col, ("ggml_im2col",)),
}
DIRECT_BUILDERS: dict[str, Builder] = {
    "conv2d": Builder(partial(_conv2d, direct=True), ("ggml_conv_2d_direct",)),
    "conv3d": Builder(partial(_conv3d, direct=True), ("ggml_conv_3d_direct", "ggml_pad_ext")),
}
