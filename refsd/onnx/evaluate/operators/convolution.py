"""Convolutions and pooling over any number of spatial axes, one filter tap at a time."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.onnx.evaluate.node import Node, operator


class Window(NamedTuple):
    """How a filter moves: a number for each spatial axis. before, after: padding"""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    output: tuple[int, ...]

    def taps(self) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """Each place in the filter, and where in the padded input it reads for all outputs."""
        for tap in np.ndindex(self.kernel):
            parts = zip(tap, self.stride, self.dilation, self.output, strict=True)
            yield tap, tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, s, d, n in parts)


def _window(node: Node, sizes: tuple[int, ...], kernel: tuple[int, ...]) -> Window:
    axes = len(sizes)
    stride = tuple(node.attribute("strides", [1] * axes))
    dilation = tuple(node.attribute("dilations", [1] * axes))
    if not len(stride) == len(dilation) == len(kernel) == axes or min((*stride, *dilation, *kernel), default=1) < 1:
        raise BadInput(f"kernel {kernel}, strides {stride}, dilations {dilation} over {axes} axes")
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    auto = node.attribute("auto_pad", "NOTSET")
    if auto.startswith("SAME"):
        output = tuple(-(-n // s) for n, s in zip(sizes, stride, strict=True))
        lacking = [max(0, (o - 1) * s + r - n) for o, s, r, n in zip(output, stride, reach, sizes, strict=True)]
        small, large = tuple(n // 2 for n in lacking), tuple(n - n // 2 for n in lacking)
        before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
        return Window(kernel, stride, dilation, before, after, output)
    pads = [0] * (2 * axes) if auto == "VALID" else node.attribute("pads", [0] * (2 * axes))
    if len(pads) != 2 * axes or min(pads, default=0) < 0:
        raise BadInput(f"pads {pads} over {axes} axes")
    before, after = tuple(pads[:axes]), tuple(pads[axes:])
    spans = [n + b + a - r for n, b, a, r in zip(sizes, before, after, reach, strict=True)]
    up = bool(node.attribute("ceil_mode", 0))
    output = tuple((-(-span // s) if up else span // s) + 1 for span, s in zip(spans, stride, strict=True))
    if up:  # no window begins in the padding behind the input
        begins = zip(output, stride, sizes, before, strict=True)
        output = tuple(o - ((o - 1) * s >= n + b) for o, s, n, b in begins)
    if min(spans, default=0) < 0:
        raise BadInput(
            f"a filter of {reach} over {[n + b + a for n, b, a in zip(sizes, before, after, strict=True)]}"
        )
    return Window(kernel, stride, dilation, before, after, output)


def _padded(node: Node, x, window: Window, value: float = 0):
    """Pad so that every tap can be read, also those of a last window that ceil_mode adds."""
    reach = [(k - 1) * d + 1 for k, d in zip(window.kernel, window.dilation, strict=True)]
    ends = [(o - 1) * s + r for o, s, r in zip(window.output, window.stride, reach, strict=True)]
    more = [
        max(a, end - n - b) for a, end, n, b in zip(window.after, ends, x.shape[2:], window.before, strict=True)
    ]
    widths = [(0, 0), (0, 0), *zip(window.before, more, strict=True)]
    node.room((n + b + a for n, (b, a) in zip(x.shape, widths, strict=True)), x.itemsize)
    return np.pad(x, widths, constant_values=value)


@operator("Conv")
def conv(node: Node, x, weight, bias=None):
    """x [N, C, ...], weight [K, C/groups, ...], bias [K] -> [N, K, ...]"""
    groups = node.attribute("group", 1)
    N, C, K = x.shape[0], x.shape[1], weight.shape[0]
    if groups < 1 or K % groups or weight.shape[1] * groups != C:
        raise BadInput(f"weight {list(weight.shape)} in {groups} groups over {C} channels")
    window = _window(node, x.shape[2:], weight.shape[2:])
    y = np.zeros(node.room((N, groups, K // groups, *window.output)), x.dtype)
    padded = _padded(node, x, window)
    padded = padded.reshape(N, groups, C // groups, *padded.shape[2:])
    weight = weight.reshape(groups, K // groups, *weight.shape[1:])
    for tap, places in window.taps():
        y += _product(weight[(..., *tap)], padded[(slice(None), slice(None), slice(None), *places)])
    y = y.reshape(N, K, *window.output)
    return y if bias is None else y + bias.reshape(-1, *(1,) * (x.ndim - 2))


@operator("ConvInteger")
def conv_integer(node: Node, x, weight, x_zero=None, weight_zero=None):
    """Padding is the zero point of x. Those of weight are of the whole, or of its filters."""
    if weight_zero is not None and weight_zero.ndim:
        weight_zero = weight_zero.reshape(-1, *(1,) * (weight.ndim - 1))
    x, weight = (
        t.astype(np.int32) - (0 if zero is None else zero.astype(np.int32))
        for t, zero in ((x, x_zero), (weight, weight_zero))
    )
    return conv(node, x, weight)


def _product(weight, x):
    """weight [G, K, C], x [N, G, C, ...] -> [N, G, K, ...]"""
    N, G, _ = x.shape[:3]
    rows = x.reshape(*x.shape[:3], math.prod(x.shape[3:]))
    return np.matmul(weight, rows).reshape(N, G, weight.shape[1], *x.shape[3:])


@operator("ConvTranspose")
def conv_transpose(node: Node, x, weight, bias=None):
    """x [N, C, ...], weight [C, K/groups, ...], bias [K] -> [N, K, ...]: each input adds a filter to the output."""
    groups, axes = node.attribute("group", 1), x.ndim - 2
    N, C, K = x.shape[0], x.shape[1], weight.shape[1] * groups
    if groups < 1 or C % groups or weight.shape[0] != C:
        raise BadInput(f"weight {list(weight.shape)} in {groups} groups over {C} channels")
    kernel = weight.shape[2:]
    stride, dilation = node.attribute("strides", [1] * axes), node.attribute("dilations", [1] * axes)
    more = node.attribute("output_padding", [0] * axes)
    if min((*stride, *dilation), default=1) < 1 or min(more, default=0) < 0:
        raise BadInput(f"strides {stride}, dilations {dilation}, output_padding {more}")
    parts = list(zip(x.shape[2:], stride, kernel, dilation, more, strict=True))
    full = [(n - 1) * s + (k - 1) * d + 1 + p for n, s, k, d, p in parts]
    before, after = _transposed_pads(node, full, [n * s for n, s, *_ in parts])
    y = np.zeros(node.room((N, groups, K // groups, *full)), x.dtype)
    x = x.reshape(N, groups, C // groups, *x.shape[2:])
    weight = weight.reshape(groups, C // groups, *weight.shape[1:]).swapaxes(1, 2)
    window = Window(kernel, tuple(stride), tuple(dilation), (), (), x.shape[3:])
    for tap, places in window.taps():
        y[(slice(None), slice(None), slice(None), *places)] += _product(weight[(..., *tap)], x)
    y = y.reshape(N, K, *full)
    # A longer output_shape than the filters reach is filled with zeros.
    y = np.pad(y, [(0, 0), (0, 0), *((max(0, -b), max(0, -a)) for b, a in zip(before, after, strict=True))])
    ends = zip(before, after, y.shape[2:], strict=True)
    y = y[(slice(None), slice(None), *(slice(max(0, b), n - max(0, a)) for b, a, n in ends))]
    return y if bias is None else y + bias.reshape(-1, *(1,) * axes)


def _transposed_pads(node: Node, full: list[int], same: list[int]) -> tuple[list[int], list[int]]:
    """How much of the full output is cut at each end."""
    axes, auto = len(full), node.attribute("auto_pad", "NOTSET")
    wanted = node.attribute("output_shape") or (same if auto.startswith("SAME") else None)
    if wanted is not None:
        cuts = [n - o for n, o in zip(full, wanted[-axes:], strict=True)]
        small, large = [int(n / 2) for n in cuts], [n - int(n / 2) for n in cuts]
        return (small, large) if auto != "SAME_LOWER" else (large, small)
    pads = node.attribute("pads", [0] * (2 * axes))
    return pads[:axes], pads[axes:]


@operator("MaxPool")
def max_pool(node: Node, x):
    if len([name for name in node.proto.output if name]) > 1:
        raise BadInput("the indices of a maximum: refsd gives the maximum only")
    window = _window(node, x.shape[2:], tuple(node.attribute("kernel_shape")))
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    padded = _padded(node, x, window, least)
    y = np.full(node.room((*x.shape[:2], *window.output)), least, x.dtype)
    for _, places in window.taps():
        np.maximum(y, padded[(slice(None), slice(None), *places)], out=y)
    return y


@operator("AveragePool")
def average_pool(node: Node, x):
    """The mean of what is inside; with count_include_pad of the padding too, but not of what ceil_mode adds."""
    window = _window(node, x.shape[2:], tuple(node.attribute("kernel_shape")))
    padded = _padded(node, x, window)
    ones = np.ones((1, 1, *x.shape[2:]))
    if node.attribute("count_include_pad", 0):
        ones = np.pad(ones, [(0, 0), (0, 0), *zip(window.before, window.after, strict=True)], constant_values=1)
        counted = np.pad(
            ones, [(0, max(0, n - m)) for n, m in zip((1, 1, *padded.shape[2:]), ones.shape, strict=True)]
        )
    else:
        counted = _padded(node, ones, window)
    y = np.zeros(node.room((*x.shape[:2], *window.output)), x.dtype)
    count = np.zeros((1, 1, *window.output), x.dtype)
    for _, places in window.taps():
        y += padded[(slice(None), slice(None), *places)]
        count += counted[(slice(None), slice(None), *places)]
    return y / count


@operator("GlobalAveragePool")
def global_average_pool(node: Node, x):
    return x.mean(axis=tuple(range(2, x.ndim)), keepdims=True)


@operator("GlobalMaxPool")
def global_max_pool(node: Node, x):
    return x.max(axis=tuple(range(2, x.ndim)), keepdims=True)
