"""Resize: along each axis a matrix of weights, one row for each output position."""

from collections.abc import Callable

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.onnx.evaluate.node import Node, operator

# output index i, output and input length, scale = output / input -> place in the input
_PLACES: dict[str, Callable] = {
    "half_pixel": lambda i, out, n, scale: (i + 0.5) / scale - 0.5,
    "asymmetric": lambda i, out, n, scale: i / scale,
    "align_corners": lambda i, out, n, scale: i * (n - 1) / (scale * n - 1) if scale * n != 1 else i * 0.0,
    "pytorch_half_pixel": lambda i, out, n, scale: (i + 0.5) / scale - 0.5 if out > 1 else i * 0.0,
    "half_pixel_symmetric": lambda i, out, n, scale: (
        (i + 0.5) / scale - 0.5 + n / 2 * (1 - out / (n * scale)) if n else i * 0.0
    ),
}
_NEAREST: dict[str, Callable] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _cubic(distance, a):
    """Keys 1981, with its parameter a."""
    t = np.abs(distance)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = a * (((t - 5) * t + 8) * t - 4)
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


_FILTERS = {"linear": (lambda distance, a: np.maximum(0, 1 - np.abs(distance)), 1), "cubic": (_cubic, 2)}


@operator("Upsample")
def upsample(node: Node, x, scales=None):
    scales = node.attribute("scales") if scales is None else scales
    return _resized(node, x, None, scales, None, range(x.ndim), "asymmetric", "floor")


@operator("Resize", since=11)
def resize(node: Node, x, roi=None, scales=None, sizes=None):
    axes = node.attribute("axes")
    axes = range(x.ndim) if axes is None else node.axes(axes, x.ndim)
    scales = None if scales is None or not scales.size else scales
    places = node.attribute("coordinate_transformation_mode", "half_pixel")
    return _resized(node, x, roi, scales, sizes, axes, places, node.attribute("nearest_mode", "round_prefer_floor"))


@operator("Resize", since=10)
def resize_10(node: Node, x, scales):
    return _resized(node, x, None, scales, None, range(x.ndim), "asymmetric", "floor")


def _resized(node: Node, x, roi, scales, sizes, axes, places: str, nearest: str):
    if scales is None:
        scales, sizes = _scales_of(node, [x.shape[axis] for axis in axes], sizes)
    else:
        scales = [float(s) for s in scales]
        if not all(0 < s < np.inf for s in scales):
            raise BadInput(f"scales {scales}")
        sizes = [int(np.floor(x.shape[axis] * s)) for axis, s in zip(axes, scales, strict=True)]
    whole = list(x.shape)
    for axis, size in zip(axes, sizes, strict=True):
        whole[axis] = size
    node.room(whole)
    for i, (axis, size, scale) in enumerate(zip(axes, sizes, scales, strict=True)):
        if size == x.shape[axis] and scale == 1 and places != "tf_crop_and_resize":
            continue
        node.room((size, x.shape[axis]))
        span = None if roi is None or not roi.size else (float(roi[i]), float(roi[len(sizes) + i]))
        weights, outside = _weights(node, x.shape[axis], size, scale, places, nearest, span)
        y = np.tensordot(np.moveaxis(x, axis, -1).astype(node.rules.dtype), weights, (-1, 1))
        if outside.any():
            y[..., outside] = node.attribute("extrapolation_value", 0.0)
        x = np.moveaxis(y.astype(x.dtype), -1, axis)
    return x


def _scales_of(node: Node, lengths: list[int], sizes) -> tuple[list[float], list[int]]:
    """Scales from sizes; under an aspect ratio policy both are changed."""
    sizes = [int(n) for n in sizes]
    if len(sizes) != len(lengths) or min(sizes, default=1) < 1 or min(lengths, default=1) < 1:
        raise BadInput(f"sizes {sizes} of axes of {lengths}")
    scales = [size / n for size, n in zip(sizes, lengths, strict=True)]
    policy = node.attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        scale = min(scales) if policy == "not_larger" else max(scales)
        sizes = [int(np.floor(scale * n + 0.5)) for n in lengths]
        scales = [scale] * len(lengths)
    return scales, sizes


def _weights(node: Node, n: int, out: int, scale: float, places: str, nearest: str, roi):
    """-> weights [out, n], and which outputs lie outside the input (tf_crop_and_resize)"""
    i = np.arange(out, dtype=np.float64)
    outside = np.zeros(out, bool)
    if places == "tf_crop_and_resize":
        start, end = roi or (0.0, 1.0)
        if out > 1:
            place = start * (n - 1) + i * (end - start) * (n - 1) / (out - 1)
        else:
            place = 0.5 * (start + end) * (n - 1) + i
        outside = (place < 0) | (place > n - 1)
    else:
        place = _PLACES[places](i, out, n, scale)
    mode = node.attribute("mode", "nearest")
    weights = np.zeros((out, n))
    rows = np.arange(out)
    if mode == "nearest":
        weights[rows, np.clip(_NEAREST[nearest](place), 0, n - 1).astype(np.int64)] = 1
        return weights.astype(node.rules.dtype), outside
    function, reach = _FILTERS[mode]
    a = node.attribute("cubic_coeff_a", -0.75)
    shrink = min(scale, 1.0) if node.attribute("antialias", 0) else 1.0
    first = np.floor(place - reach / shrink).astype(np.int64)
    reads = first[:, None] + np.arange(int(np.ceil(2 * reach / shrink)) + 2)
    weight = function((reads - place[:, None]) * shrink, a)
    inside = (reads >= 0) & (reads < n)
    if node.attribute("exclude_outside", 0):
        weight = np.where(inside, weight, 0)
    if node.attribute("exclude_outside", 0) or shrink < 1:
        weight = weight / weight.sum(axis=1, keepdims=True)
    np.add.at(weights, (rows[:, None], np.clip(reads, 0, n - 1)), weight)
    return weights.astype(node.rules.dtype), outside
