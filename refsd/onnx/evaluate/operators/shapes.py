"""Operators that move values without changing them, and that tell shapes."""

import numpy as np

from refsd.numerics.errors import BadInput
from refsd.onnx.evaluate.node import Node, operator


@operator("Shape")
def shape(node: Node, x):
    return np.array(x.shape, np.int64)[node.attribute("start", 0) : node.attribute("end")]


@operator("Size")
def size(node: Node, x):
    return np.array(x.size, np.int64)


@operator("Reshape")
def reshape(node: Node, x, to=None):
    """0 keeps an axis, unless allowzero; one -1 takes what is left."""
    wanted = node.attribute("shape", []) if to is None else [int(n) for n in to]
    if not node.attribute("allowzero", 0):
        wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    if min(wanted, default=0) < -1:
        raise BadInput(f"shape {wanted}: an axis is negative")
    return x.reshape(wanted)


@operator("Flatten")
def flatten(node: Node, x):
    axis = node.attribute("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    rows = int(np.prod(x.shape[:axis], dtype=object))
    return x.reshape(rows, -1) if x.size else x.reshape(rows, int(np.prod(x.shape[axis:], dtype=object)))


@operator("Transpose")
def transpose(node: Node, x):
    return x.transpose(node.attribute("perm"))


@operator("Squeeze")
def squeeze(node: Node, x, axes=None):
    axes = node.attribute("axes") if axes is None else axes.reshape(-1)
    return x.squeeze() if axes is None else x.squeeze(node.axes(axes, x.ndim))


@operator("Unsqueeze")
def unsqueeze(node: Node, x, axes=None):
    axes = node.attribute("axes") if axes is None else axes.reshape(-1)
    return np.expand_dims(x, node.axes(axes, x.ndim + len(axes)))


@operator("Expand")
def expand(node: Node, x, to):
    sizes = tuple(int(n) for n in to)
    ndim = max(x.ndim, len(sizes))
    mine, theirs = ((1,) * (ndim - len(s)) + s for s in (x.shape, sizes))
    if any(n < 0 for n in theirs):
        raise BadInput(f"shape {list(sizes)}: an axis is negative")
    whole = node.room((b if a == 1 else a for a, b in zip(mine, theirs, strict=True)), x.itemsize)
    return np.broadcast_to(x, whole)


@operator("Tile")
def tile(node: Node, x, repeats):
    repeats = [int(n) for n in repeats]
    if len(repeats) != x.ndim or min(repeats, default=1) < 0:
        raise BadInput(f"repeats {repeats} of a tensor with {x.ndim} axes")
    node.room((n * times for n, times in zip(x.shape, repeats, strict=True)), x.itemsize)
    return np.tile(x, repeats)


@operator("Concat")
def concat(node: Node, *xs):
    axis = node.axis(node.attribute("axis"), xs[0].ndim)
    node.room((sum(x.size for x in xs),), xs[0].itemsize)
    return np.concatenate(xs, axis)


@operator("Split")
def split(node: Node, x, sizes=None):
    """By sizes, else into equal parts, of which the last may be smaller."""
    axis = node.axis(node.attribute("axis", 0), x.ndim)
    sizes = node.attribute("split") if sizes is None else [int(n) for n in sizes]
    if sizes is None:
        count = node.attribute("num_outputs", len(node.proto.output))
        each = -(-x.shape[axis] // count)
        sizes = [min(each, max(0, x.shape[axis] - i * each)) for i in range(count)]
    if sum(sizes) != x.shape[axis] or min(sizes, default=0) < 0:
        raise BadInput(f"sizes {sizes} of an axis of {x.shape[axis]}")
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


@operator("Slice", since=10)
def slice_(node: Node, x, starts, ends, axes=None, steps=None):
    return _sliced(node, x, starts, ends, axes, steps)


@operator("Slice")
def slice_by_attributes(node: Node, x):
    return _sliced(node, x, node.attribute("starts"), node.attribute("ends"), node.attribute("axes"), None)


def _sliced(node: Node, x, starts, ends, axes, steps):
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    parts = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, node.axes(axes, x.ndim), steps, strict=True):
        start, end, step, n = int(start), int(end), int(step), x.shape[axis]
        start, end = (place + n if place < 0 else place for place in (start, end))
        if step > 0:
            parts[axis] = slice(min(max(start, 0), n), min(max(end, 0), n), step)
        else:
            end = min(max(end, -1), n - 1)
            parts[axis] = slice(min(max(start, 0), n - 1), None if end < 0 else end, step)
    return x[tuple(parts)]


_PADS = {
    "reflect": lambda x, widths: np.pad(x, widths, "reflect"),
    "edge": lambda x, widths: np.pad(x, widths, "edge"),
    "wrap": lambda x, widths: np.pad(x, widths, "wrap"),
}


@operator("Pad")
def pad(node: Node, x, pads=None, value=None, axes=None):
    """Negative pads cut."""
    pads = node.attribute("pads", node.attribute("paddings")) if pads is None else pads
    axes = range(x.ndim) if axes is None else node.axes(axes, x.ndim)
    count, mode = len(axes), node.attribute("mode", "constant")
    before, after = [0] * x.ndim, [0] * x.ndim
    for i, axis in enumerate(axes):
        before[axis], after[axis] = int(pads[i]), int(pads[i + count])
    cut = tuple(slice(max(0, -b), n - max(0, -a)) for n, b, a in zip(x.shape, before, after, strict=True))
    widths = [(max(0, b), max(0, a)) for b, a in zip(before, after, strict=True)]
    x = x[cut]
    node.room((n + b + a for n, (b, a) in zip(x.shape, widths, strict=True)), x.itemsize)
    if mode == "constant":
        value = node.attribute("value", 0.0) if value is None else value
        return np.pad(x, widths, constant_values=np.asarray(value, x.dtype).reshape(()))
    return _PADS[mode](x, widths)


@operator("DepthToSpace")
def depth_to_space(node: Node, x):
    N, C, H, W = x.shape
    b = node.attribute("blocksize")
    if node.attribute("mode", "DCR") == "DCR":
        y = x.reshape(N, b, b, C // (b * b), H, W).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(N, C // (b * b), b, b, H, W).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(N, C // (b * b), H * b, W * b)


@operator("SpaceToDepth")
def space_to_depth(node: Node, x):
    N, C, H, W = x.shape
    b = node.attribute("blocksize")
    order = (0, 3, 5, 1, 2, 4) if node.attribute("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return x.reshape(N, C, H // b, b, W // b, b).transpose(order).reshape(N, C * b * b, H // b, W // b)


@operator("Trilu")
def trilu(node: Node, x, k=None):
    k = 0 if k is None else int(k)
    return np.triu(x, k) if node.attribute("upper", 1) else np.tril(x, k)
