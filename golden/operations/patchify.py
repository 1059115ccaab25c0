"""Cut a picture into tokens, and join them again."""

import numpy as np

from refsd.golden.bounds import movement
from refsd.golden.case import Case
from refsd.golden.mutations import BATCH, SIDES_SWAPPED, answer, other_input, other_params
from refsd.golden.operation import IMAGE, REQUIRED, Mutant, Operation, values
from refsd.golden.recipe import Recipe
from refsd.kernels import patchify


def _patchify(a, inputs, params):
    cut = patchify.patchify_channels_last if params["channels_last"] else patchify.patchify
    return cut(values(a, inputs["x"]), params["patch"])


def _unpatchify(a, inputs, params):
    join = patchify.unpatchify_channels_last if params["channels_last"] else patchify.unpatchify
    return join(values(a, inputs["x"]), params["patch"], params["height"])


def tokens_by_column(op, inputs, params):
    y = answer(op, inputs, params)
    H, W = (size // params["patch"] for size in inputs["x"].shape[2:])
    return y.reshape(len(y), H, W, -1).swapaxes(1, 2).reshape(y.shape)


def read_by_column(op, inputs, params):
    def reordered(x):
        N, L, D = x.shape
        H = params["height"]
        return x.reshape(N, L // H, H, D).swapaxes(1, 2).reshape(x.shape)

    return other_input("x", reordered)(op, inputs, params)


def height_for_width(op, inputs, params):
    """Take the grid's height for its width, and write as many pixels into the right shape's memory."""
    other = {**params, "height": inputs["x"].shape[1] // params["height"]}
    return answer(op, inputs, other).reshape(answer(op, inputs, params).shape)


def _block(t: np.ndarray, patch: int, channels_last: bool) -> np.ndarray:
    """Exchange row and column within each token."""
    N, L, D = t.shape
    C = D // patch**2
    shape, axes = ((patch, patch, C), (0, 1, 3, 2, 4)) if channels_last else ((C, patch, patch), (0, 1, 2, 4, 3))
    return t.reshape(N, L, *shape).transpose(axes).reshape(t.shape)


def block_transposed(op, inputs, params):
    how = params["patch"], params["channels_last"]
    if op.name == "patchify":
        return _block(answer(op, inputs, params), *how)
    return other_input("x", lambda x: _block(x, *how))(op, inputs, params)


def untransposed_where_one(op, inputs, params):
    """Copy the memory without a transpose if a dimension is 1."""
    x = inputs["x"].values()
    if 1 not in x.shape[1:]:
        return None
    return np.ascontiguousarray(x).reshape(answer(op, inputs, params).shape)


_BOTH = (
    Mutant("channels at the other end", other_params(channels_last=lambda last: not last)),
    Mutant("row and column within a token exchanged", block_transposed),
    BATCH,
)

_PICTURE = Recipe((2, 5, 6, 8))

_INNER = {"channels_last": True}

PATCHIFY = Operation(
    "patchify",
    "Cut a picture into tokens of patch x patch pixels, their channel outermost or innermost.",
    inputs={"x": IMAGE},
    output="[N, H/patch * W/patch, C*patch^2]",
    params={"patch": 2, "channels_last": False},
    run=_patchify,
    bound=movement,
    mutants=(
        *_BOTH,
        Mutant("tokens column by column", tokens_by_column),
        SIDES_SWAPPED,
        Mutant("not transposed where a dimension is 1: as it lies in memory", untransposed_where_one),
    ),
    cases=(
        Case("patchify/f32/outer-n2-c5-h6-w8", "patchify", {"x": _PICTURE}),
        Case("patchify/f32/inner-n2-c5-h6-w8", "patchify", {"x": _PICTURE}, _INNER),
        Case("patchify/f32/three-n1-c7-h6-w9", "patchify", {"x": Recipe((1, 7, 6, 9))}, {"patch": 3}),
        Case("patchify/f32/grey-n2-c1-h6-w8", "patchify", {"x": Recipe((2, 1, 6, 8))}),
        # More tokens than 65535 blocks of 32.
        Case("patchify/f32/tall-n1-c2-h2097184-w1", "patchify", {"x": Recipe((1, 2, 2097184, 1))}, {"patch": 1}),
    ),
)

UNPATCHIFY = Operation(
    "unpatchify",
    "Undo patchify; height is counted in tokens.",
    inputs={"x": "[N, L, C*patch^2]"},
    output="[N, C, height*patch, L/height*patch]",
    channel=1,
    params={"patch": 2, "height": REQUIRED, "channels_last": False},
    run=_unpatchify,
    bound=movement,
    mutants=(
        *_BOTH,
        Mutant("tokens column by column", read_by_column),
        Mutant("height taken for the width", height_for_width),
    ),
    cases=(
        Case("unpatchify/f32/outer-n2-l12-d20", "unpatchify", {"x": Recipe((2, 12, 20))}, {"height": 3}),
        Case("unpatchify/f32/inner-n2-l12-d20", "unpatchify", {"x": Recipe((2, 12, 20))}, {"height": 4, **_INNER}),
        Case("unpatchify/f32/three-n1-l6-d63", "unpatchify", {"x": Recipe((1, 6, 63))}, {"height": 2, "patch": 3}),
    ),
)

OPERATIONS = (PATCHIFY, UNPATCHIFY)
