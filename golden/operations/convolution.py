"""Parameters, bound, bugs and cases that conv2d and conv3d share."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from refsd.golden.bounds import Run, bias_per_channel, sums
from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, F16_INPUT, F16_WEIGHT, NO_BIAS, Wrong, answer, other_input, turned
from refsd.golden.operation import Mutant
from refsd.golden.operations.winograd_f16 import winograd_f16
from refsd.golden.recipe import Recipe
from refsd.golden.rounding import Bound, Terms
from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.conv2d_winograd_f16 import applies
from refsd.kernels.conv3d_frames import conv3d_frames
from refsd.kernels.convolution_geometry import each, positions
from refsd.numerics.tensor import stored


def _each(value):
    """Return a stride or a dilation, with a list (which JSON makes of a tuple) turned back into a tuple."""
    return tuple(value) if isinstance(value, (list, tuple)) else value


def window_fits(shapes, params) -> bool:
    """Return True if the filter fits into the padded picture, and the groups divide the filters evenly."""
    sizes = shapes["x"][2:]
    filters = next((shapes[name] for name in ("weight", "down", "w2", "w2_b") if name in shapes), None)
    if filters is None and "kernel" not in params:
        return False
    taps = tuple(params["kernel"]) if filters is None else filters[2:]
    stride, dilation = (each(params.get(name, 1), len(sizes)) for name in ("stride", "dilation"))
    steps = (*stride, *dilation, *taps, params.get("groups", 1))
    if min(steps) < 1 or min(params["padding"]) < 0 or len(params["padding"]) != 2 * len(sizes):
        return False
    grouped = "weight" not in shapes or shapes["weight"][0] % params["groups"] == 0
    return grouped and min(positions(sizes, params["padding"], taps, stride, dilation)) > 0


def geometry(params):
    return _each(params["stride"]), tuple(params["padding"]), _each(params["dilation"]), params["groups"]


def weights(a, inputs):
    weight = a.expand(inputs["weight"])
    return weight, a.expand(inputs["bias"]) if "bias" in inputs else np.zeros(weight.shape[0], weight.dtype)


# Winograd F(4x4, 3x3), which an engine may choose for a 3x3 filter, magnifies a float32 rounding: measured 58 u
# relative to the norm of the output on a 64-channel layer (conv2d's limit must leave room for it).
_WINOGRAD = 64.0


def convolution_bound(run: Run) -> Bound:
    """Bound y = w * x + b by convolutions of absolute values.

    |w| * dx + dw * (|x| + dx) + db, gamma(n + 1) (|w| + dw) * (|x| + dx) for the sum of n = C R S products, and the
    rounding of y. dx and dw are what storage and the type of products lose: in float16 half a step of each number.
    A 3x3 filter of stride 1 may go by Winograd: 8 _WINOGRAD u times the channel's largest root of squares more.
    """
    how = (run.params["stride"], tuple(run.params["padding"]), run.params["dilation"], run.params["groups"])
    weight = run.inputs["weight"]
    if run.numerics.convolution == "winograd-f16" and weight.ndim == 4 and applies(weight.shape, *how):
        return winograd_f16(run)
    convolve = conv2d_im2col if weight.ndim == 4 else conv3d_frames
    none = np.zeros(len(weight))

    def sum_of(x, w):
        return convolve(np.ascontiguousarray(x), np.ascontiguousarray(w), none, *how)

    W, dW = np.abs(weight), run.moved("weight", run.numerics.conv)
    x, dx = np.abs(run.inputs["x"]), run.moved("x", run.numerics.conv)
    b, db = bias_per_channel(run)
    terms = Terms()
    # What the storage holds exactly costs no convolution.
    if dx.any():
        terms.add(sum_of(dx, W), np.sqrt(sum_of(dx**2, W**2) / 3))
    if dW.any():
        terms.add(sum_of(x + dx, dW), np.sqrt(sum_of((x + dx) ** 2, dW**2) / 3))
    terms.add(db)
    absolute = sum_of(x + dx, W + dW) + b + db
    squares = sum_of((x + dx) ** 2, (W + dW) ** 2) + b**2
    terms.add(*sums(run, "conv", weight[0].size, absolute, squares, run.truth))
    # An engine may use Winograd for each frame, or for a picture.
    if weight.shape[-2:] == (3, 3) and np.all(np.equal(how[0], 1)) and np.all(np.equal(how[2], 1)):
        pixels = tuple(range(2, weight.ndim))
        typical = _WINOGRAD * run.u * np.sqrt(squares.max(axis=pixels, keepdims=True))
        terms.add(8 * typical, typical)
    return run.rounded(terms)


def channels_interleaved(w: np.ndarray) -> np.ndarray | None:
    """Read filters [K, C, R, S] as if they were [K, R, S, C] (or [K, T, R, S, C])."""
    K, C, *taps = w.shape
    return np.moveaxis(w.reshape(K, *taps, C), -1, 1) if np.prod(taps) > 1 and C > 1 else None


def filters_for_channels(w: np.ndarray) -> np.ndarray | None:
    """Read filters [K, C, R, S] as [C, K, R, S] where C is K."""
    return w.swapaxes(0, 1) if w.shape[0] == w.shape[1] > 1 else None


def filters_transposed(w: np.ndarray) -> np.ndarray:
    return w.reshape(*w.shape[:-2], w.shape[-1], w.shape[-2]).swapaxes(-1, -2)


def padding_repeated(op, inputs, params):
    """Pad with the border's pixels instead of zeros."""
    padding = tuple(params["padding"])
    if not any(padding):
        return None
    sides = [padding[i : i + 2] for i in range(0, len(padding), 2)]
    x = np.pad(inputs["x"].values(), [(0, 0), (0, 0), *sides], "edge")
    return answer(op, {**inputs, "x": stored(x)}, {**params, "padding": (0,) * len(padding)})


def padding_of(order: Callable[[list[tuple[int, ...]]], list[tuple[int, ...]]]) -> Wrong:
    """Take the numbers of the padding in another order. order: (before, behind) of each axis -> others"""

    def wrong(op, inputs, params):
        padding = tuple(params["padding"])
        other = sum(order([padding[i : i + 2] for i in range(0, len(padding), 2)]), ())
        return answer(op, inputs, {**params, "padding": other}) if other != padding else None

    return wrong


def dilation_ignored(op, inputs, params):
    """Put the filter's taps side by side, in the middle of the dilated window."""
    taps = inputs["weight"].shape[2:] if "weight" in inputs else params["kernel"]
    spare = [(d - 1) * (n - 1) for d, n in zip(each(params["dilation"], len(taps)), taps, strict=True)]
    padding = [p - (spare[i // 2] + i % 2) // 2 for i, p in enumerate(params["padding"])]
    if not any(spare) or min(padding) < 0:
        return None
    return answer(op, inputs, {**params, "dilation": 1, "padding": tuple(padding)})


def dilation_ignored_along(axis: int) -> Wrong:
    """Put the filter's taps of one axis side by side, from the window's beginning on. axis: -1 across, -2 down"""

    def change(op, inputs, params):
        n = len(inputs["weight"].shape) - 2
        dilation, at = [*each(params["dilation"], n)], n + axis
        spare = (dilation[at] - 1) * (inputs["weight"].shape[2 + at] - 1)
        padding, dilation[at] = [*params["padding"]], 1
        padding[2 * at + 1] -= spare
        if not spare or min(padding) < 0:
            return None
        return answer(op, inputs, {**params, "dilation": tuple(dilation), "padding": tuple(padding)})

    return change


def groups_interleaved(op, inputs, params):
    """Take every groups-th channel for a group, instead of neighbouring channels."""
    x, groups = inputs["x"].values(), params["groups"]
    if groups in (1, x.shape[1]):
        return None
    mixed = x.reshape(x.shape[0], -1, groups, *x.shape[2:]).swapaxes(1, 2).reshape(x.shape)
    return answer(op, {**inputs, "x": stored(mixed)}, params)


def groups_in_turn(op, inputs, params):
    """Apply filter k to group k mod groups."""
    weight, groups = inputs["weight"].values(), params["groups"]
    K = len(weight)
    if groups in (1, K):
        return None
    order = np.arange(K).reshape(-1, groups).T.reshape(-1)
    changed = {name: stored(inputs[name].values()[order]) for name in ("weight", "bias") if name in inputs}
    return answer(op, {**inputs, **changed}, params)[:, np.argsort(order)]


def groups_ignored(op, inputs, params):
    """Read the first group's channels for every filter."""
    x, groups = inputs["x"].values(), params["groups"]
    if groups == 1:
        return None
    first = np.tile(x[:, : x.shape[1] // groups], (1, groups, *[1] * (x.ndim - 2)))
    return answer(op, {**inputs, "x": stored(first)}, params)


def bias_within_groups(op, inputs, params):
    """Read the bias by a filter's number inside its group."""
    groups = params["groups"]
    if groups == 1 or "bias" not in inputs:
        return None
    bias = inputs["bias"].values()
    return answer(op, {**inputs, "bias": stored(np.tile(bias[: len(bias) // groups], groups))}, params)


def groups_on_the_inputs(channels_last: bool) -> Wrong:
    """Read filters of K / groups outputs, whose groups lie side by side on the inputs, as [K, C / groups]."""

    def wrong(op, inputs, params):
        groups = params["groups"]
        if groups == 1 or "weight" not in inputs:
            return None
        weight = inputs["weight"].values()
        K, C, *taps = weight.shape
        apart = weight.reshape(groups, K // groups, C, *taps)
        if channels_last:
            read = np.moveaxis(np.moveaxis(apart, (0, 2), (-2, -1)).reshape(K, *taps, C), -1, 1)
        else:
            read = apart.swapaxes(0, 1).reshape(weight.shape)
        return answer(op, {**inputs, "weight": stored(np.ascontiguousarray(read))}, params)

    return wrong


def nothing_from_the_padding(op, inputs, params):
    """Find zeros alone in a window that begins in the padding: its place has no sign, and is far outside."""
    padding = tuple(params["padding"])
    if not any(padding[::2]) or "weight" not in inputs:
        return None
    y = np.array(answer(op, inputs, params))
    bias = inputs["bias"].values().reshape(-1, *(1,) * (y.ndim - 3)) if "bias" in inputs else 0
    steps = each(params["stride"], len(padding) // 2)
    for axis, (step, before) in enumerate(zip(steps, padding[::2], strict=True), 2):
        np.moveaxis(y, axis, 0)[np.arange(y.shape[axis]) * step < before] = bias
    return y


def moved_padding(change: Callable[[int, int, int, int], tuple[int, int]]) -> Wrong:
    """Move the picture in its padding; the output's shape stays. change: top, bottom, left, right -> top, left"""

    def wrong(op, inputs, params):
        padding = tuple(params["padding"])
        if len(padding) != 4 or not any(padding):
            return None
        top, bottom, left, right = padding
        up, before = change(*padding)
        if (up, before) == (top, left):
            return None
        x = inputs["x"].values()
        high, wide = x.shape[2] + top + bottom, x.shape[3] + left + right
        y = np.pad(
            x, ((0, 0), (0, 0), (up, max(0, high - x.shape[2] - up)), (before, max(0, wide - x.shape[3] - before)))
        )
        y = np.ascontiguousarray(y[:, :, :high, :wide])
        return answer(op, {**inputs, "x": stored(y)}, {**params, "padding": (0, 0, 0, 0)})

    return wrong


def pads_both_sides(op, inputs, params):
    """Pad (1, 1, 1, 1) where only the bottom and the right should be padded."""
    if tuple(params["padding"]) != (0, 1, 0, 1):
        return None
    return answer(op, inputs, {**params, "padding": (1, 1, 1, 1)})


def taps_by_height(op, inputs, params):
    """Put tap i of a filter at row i // R, column i % R: its height R is used for its width S."""
    if "weight" not in inputs or inputs["weight"].values().ndim != 4:
        return None
    w = inputs["weight"].values()
    K, C, R, S = w.shape
    if R == S:
        return None
    size = max(R, S)
    (high, wide), padding = each(params["dilation"], 2), tuple(params["padding"])
    square = np.zeros((K, C, size, size), w.dtype)
    for i in range(R * S):
        square[:, :, i // R, i % R] = w[:, :, i // S, i % S]
    more = 0, (size - R) * high, 0, (size - S) * wide
    bias = {"bias": inputs["bias"]} if "bias" in inputs else {}
    return answer(
        op,
        {"x": inputs["x"], "weight": stored(square), **bias},
        {**params, "padding": tuple(p + m for p, m in zip(padding, more, strict=True))},
    )


def channels_at(step: int, block: int) -> Wrong:
    """Read channels `block` at a time from an address that advances by `step`; only with one channel a filter."""

    def wrong(op, inputs, params):
        groups, x = params["groups"], inputs["x"].values()
        if groups != x.shape[1] or groups < block:
            return None
        channel = np.arange(groups)
        read = np.minimum(channel // block * step + channel % block, groups - 1)
        return answer(op, {**inputs, "x": stored(np.ascontiguousarray(x[:, read]))}, params)

    return wrong


def pointwise_along_the_width(op, inputs, params):
    """Apply a 1x1 filter as a linear layer along W of [N, C, H, W], not along C."""
    x, weight = inputs["x"].values(), inputs["weight"].values()
    if weight.ndim != 4 or weight.shape[2:] != (1, 1) or not weight.shape[0] == weight.shape[1] == x.shape[3]:
        return None
    y = x @ weight[:, :, 0, 0].T.astype(np.float32)
    return y + inputs["bias"].values() if "bias" in inputs else y


MUTANTS = (
    Mutant("filter transposed", other_input("weight", filters_transposed)),
    Mutant("filters and channels of the weight exchanged", other_input("weight", filters_for_channels)),
    Mutant("stride's two numbers exchanged", turned("stride")),
    Mutant("dilation's two numbers exchanged", turned("dilation")),
    Mutant("filter read as channels-last", other_input("weight", channels_interleaved)),
    NO_BIAS,
    Mutant("border repeated", padding_repeated),
    Mutant("padding on the other side", padding_of(lambda axes: [axis[::-1] for axis in axes])),
    Mutant("padding of rows and columns swapped", padding_of(lambda axes: [*axes[:-2], axes[-1], axes[-2]])),
    Mutant("dilation ignored", dilation_ignored),
    Mutant("groups of interleaved channels", groups_interleaved),
    Mutant("filters dealt to the groups in turn", groups_in_turn),
    Mutant("groups ignored: every filter reads the first group's channels", groups_ignored),
    Mutant("bias read by the number inside the group", bias_within_groups),
    Mutant("filters' groups on the axis of inputs, read on that of outputs", groups_on_the_inputs(False)),
    Mutant(
        "filters' groups on the axis of inputs, read on that of outputs, channels last", groups_on_the_inputs(True)
    ),
    Mutant("windows that begin in the padding find nothing: their place has no sign", nothing_from_the_padding),
    BATCH,
    F16_INPUT,
    F16_WEIGHT,
)


class Geometry(NamedTuple):
    """The shapes and parameters of a case.

    x: [N, C, H, W] or [N, C, D, H, W]; K: filters; kernel: (R, S) or (T, R, S); the rest are the params
    """

    label: str
    x: tuple[int, ...]
    K: int
    kernel: tuple[int, ...]
    stride: int | tuple[int, ...]
    padding: tuple[int, ...]
    data: str = "bell"
    dilation: int | tuple[int, ...] = 1
    groups: int = 1


def convolution_case(op: str, s: Geometry, type: str) -> Case:
    inputs = {
        "x": Recipe(s.x, data=s.data),
        "weight": Recipe((s.K, s.x[1] // s.groups, *s.kernel), type, exponent=-19),
        "bias": Recipe((s.K,)),
    }
    params = {"stride": s.stride, "padding": s.padding}
    if s.dilation != 1:
        params["dilation"] = s.dilation
    if s.groups != 1:
        params["groups"] = s.groups
    N, C, *depth, H, W = s.x
    deep = f"-d{depth[0]}" if depth else ""
    return Case(f"{op}/{type}/{s.label}-n{N}-c{C}-k{s.K}{deep}-h{H}-w{W}", op, inputs, params)
