"""Resampling and pooling as ONNX nodes."""

import numpy as np

from refsd.onnx.operations.convolution import pads
from refsd.onnx.operations.function import Function

_NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
# torch's cubic: Keys' a, by whether it smooths what it shrinks
_CUBIC = {False: -0.75, True: -0.5}

_EXACT = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}


def _resized(b, x, height, width, factors=None, **how):
    if factors:
        return b.node("Resize", x, None, b.constant(np.array([1, 1, *factors], np.float32)), **how)
    return b.node("Resize", x, None, None, [*x.shape[:2], height, width], **how)


def _upsample_nearest(b, x, params):
    H, W = (size * params["factor"] for size in x["x"].shape[2:])
    return _resized(b, x["x"], H, W, **_NEAREST)


def _interpolated(mode: str) -> Function:
    def resize(b, x, params):
        corners = "align_corners" if params["align_corners"] else "half_pixel"
        smooth = int(params["antialias"])
        how = {"mode": mode, "coordinate_transformation_mode": corners, "antialias": smooth}
        # Where torch smooths, weights outside the picture count for nothing; elsewhere they are the border's.
        how["exclude_outside"] = smooth
        if mode == "cubic":
            how["cubic_coeff_a"] = _CUBIC[params["antialias"]]
        return _resized(b, x["x"], params["height"], params["width"], params["factors"], **how)

    return resize


def _window(params):
    down, across = params["padding"]
    return {
        "kernel_shape": list(params["kernel_size"]),
        "strides": list(params["stride"]),
        "pads": pads((down, down, across, across)),
    }


def _avg_pool2d(b, x, params):
    return b.node("AveragePool", x["x"], count_include_pad=int(params["count_include_pad"]), **_window(params))


def _nearest(how: dict[str, str]) -> Function:
    return lambda b, x, params: _resized(b, x["x"], params["height"], params["width"], **how)


FUNCTIONS: dict[str, Function] = {
    "upsample_nearest": _upsample_nearest,
    "resize_nearest": _nearest(_NEAREST),
    "resize_nearest_exact": _nearest(_EXACT),
    "resize_bilinear": _interpolated("linear"),
    "resize_bicubic": _interpolated("cubic"),
    "avg_pool2d": _avg_pool2d,
    "max_pool2d": lambda b, x, params: b.node("MaxPool", x["x"], **_window(params)),
}
