"""An eleventh fresh set, of operations: from public trackers, drawn before a look at the judge."""

from collections.abc import Mapping

import msgspec
import numpy as np
from held_out import HeldOut
from injection import other_result, wrong_method

from refsd.engines.reference import Reference
from refsd.numerics.profiles import FLOAT32
from refsd.numerics.tensor import StoredTensor, stored

# --- products ----------------------------------------------------------------------------------------------------

_TILE = 32


def _past_the_end(a, right, x, weight, bias=None, *rest, **named):
    """The last tile of 32 inputs is read whole: what lies behind a row, the next one's beginning, counts, too."""
    more = -x.shape[-1] % _TILE
    if not more:
        return right(x, weight, bias, *rest, **named)
    x, weight = np.asarray(x), np.asarray(weight)
    rows = x.reshape(-1, x.shape[-1])
    behind = [np.concatenate([t, np.roll(t, -1, axis=0)[:, :more]], axis=1) for t in (rows, weight)]
    return right(behind[0].reshape(*x.shape[:-1], -1), behind[1], bias, *rest, **named)


def _items_a_row_apart(case, inputs, y):
    """Each item's rows are written one row, not all of the item's rows, behind the one before it."""
    if y.ndim < 3:
        return y
    wrong = np.zeros_like(y).reshape(-1, y.shape[-1])
    for i, item in enumerate(y):
        wrong[i : i + len(item)] = item
    return wrong.reshape(y.shape)


def _scales_of_later_rows(case, inputs, y):
    """Item z reads the scales of row n + z for those of row n."""
    if y.ndim < 3 or inputs["weight_scale"].shape[0] == 1:
        return y
    scale = inputs["weight_scale"]
    items = [
        _computed(case, inputs, {"weight_scale": stored(np.roll(scale.values(), -z))})[z] for z in range(len(y))
    ]
    return np.stack(items).astype(y.dtype)


def _scales_of_columns(case, inputs, y):
    """Scales lie group by group, [K / group, N], and are read row by row."""
    scale = inputs["group_scale"]
    bits = scale.data.reshape(scale.shape)
    other = StoredTensor(scale.type, scale.shape, np.ascontiguousarray(bits.T).reshape(scale.shape))
    return _computed(case, inputs, {"group_scale": other}).astype(y.dtype)


def _computed(case, inputs: Mapping[str, StoredTensor], others: Mapping[str, StoredTensor]) -> np.ndarray:
    return Reference(FLOAT32).run(case, {**inputs, **others})["y"]


# --- pictures, norms and attention -------------------------------------------------------------------------------


def _dilation_of_columns(a, right, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
    """Filters are spread by the columns' dilation along both axes; the picture's size is the right one."""
    down, across = dilation if isinstance(dilation, tuple) else (dilation, dilation)
    y = right(x, weight, bias, stride, padding, (down, across), groups)
    return y if down == across else right(x, weight, bias, stride, padding, across, groups)[:, :, : y.shape[2]]


def _squares_in_bf16(a, right, x, weight, eps=1e-6):
    """Squares, their mean, its root and the quotient are rounded to bf16."""
    x = np.asarray(x)
    mean = a.round_as(a.round_as(x * x, "bf16").mean(-1, keepdims=True), "bf16")
    y = a.round_as(x / a.round_as(np.sqrt(mean + x.dtype.type(eps)), "bf16"), "bf16")
    return y if weight is None else y * weight


def _planes_apart(a, right, q, k, v, *rest, **named):
    """Keys and values of each head lie packed, and are read as if a head had room for a multiple of 32."""

    def read(t):
        B, J, H, D = t.shape
        rows = np.asarray(t).swapaxes(1, 2).reshape(B, H * J, D)
        at = (np.arange(H)[:, None] * (J - -J % -_TILE) + np.arange(J)) % (H * J)
        return np.ascontiguousarray(rows[:, at].swapaxes(1, 2))

    return right(q, read(k), read(v), *rest, **named)


def _corners_apart(case, inputs, y):
    """The parameter that aligns the corners is not passed on."""
    params = {name: value for name, value in case.params.items() if name != "align_corners"}
    return Reference(FLOAT32).run(msgspec.structs.replace(case, params=params), inputs)["y"].astype(y.dtype)


_TABLE = {
    "e-op-01": (
        "op",
        "ggml-org/llama.cpp#27450",
        wrong_method("linear", "linear", "next row|past|behind|beyond|tail|multiple of|tile", linear=_past_the_end),
    ),
    "e-op-02": (
        "op",
        "ml-explore/mlx#1758",
        other_result("linear_nvfp4", "item|batch|overwr|not written|written over|rows", _items_a_row_apart),
    ),
    "e-op-03": (
        "op",
        "huggingface/transformers#47331",
        other_result("linear_int8", "item|batch", _scales_of_later_rows),
    ),
    "e-op-04": (
        "op",
        "onnxsim/onnxsim#749, of ONNX Runtime",
        other_result("linear_w4a8", "scales?.*(order|transpos|column|read|elsewhere|other)", _scales_of_columns),
    ),
    "e-op-05": (
        "op",
        "apache/mxnet#6986",
        wrong_method("conv2d", "conv2d", "dilation", conv2d=_dilation_of_columns),
    ),
    "e-op-06": (
        "op",
        "openvinotoolkit/openvino#36718",
        wrong_method("rms_norm", "rms_norm", "bf16|bfloat16|precision|rounded|half", rms_norm=_squares_in_bf16),
    ),
    "e-op-07": (
        "op",
        "ggml-org/llama.cpp#27769",
        wrong_method(
            "attention",
            "attention",
            "stride|contiguous|layout|packed|rows of|other head|head.*(lie|read)|memory",
            attention=_planes_apart,
        ),
    ),
    "e-op-08": (
        "op",
        "tenstorrent/tt-metal#27001",
        other_result("resize_bilinear", "corner", _corners_apart),
    ),
}
ELEVENTH_OPERATIONS = {id: HeldOut(*row) for id, row in _TABLE.items()}
