"""Layouts of tiles, bugs beside which nothing is written, and blocks computed in float16 are named."""

import numpy as np
import pytest
from naming import named

from refsd.causes.operation.block_parts import parts_of, wrong_values
from refsd.golden.mutations import answer
from refsd.golden.recipe import Recipe, realize
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.jitted

SQUARE = "linear/q8_0/square-weight-x5x96-o96"


def _tiles(x, high, wide, stored_so):
    """Loops over tiles, one number at a time."""
    rows, columns = x.shape
    order = [
        (row + i, column + j)
        for row in range(0, rows, high)
        for column in range(0, columns, wide)
        for i in range(high)
        for j in range(wide)
    ]
    y = np.empty_like(x)
    for place, (row, column) in enumerate(order):
        flat = divmod(place, columns)
        y[flat if stored_so else (row, column)] = x[(row, column) if stored_so else flat]
    return y


def _of_weight(high, wide, stored_so):
    def wrong(op, inputs, params):
        weight = _tiles(inputs["weight"].values(), high, wide, stored_so)
        return answer(op, {**inputs, "weight": stored(weight)}, params)

    return wrong


@pytest.mark.parametrize(("high", "wide"), [(4, 4), (16, 8), (8, 16)])
@pytest.mark.parametrize(("stored_so", "words"), [(True, "stored"), (False, "read")])
def test_tiles_one_behind_the_other(high, wide, stored_so, words):
    says = f"weight: {words} as tiles of {high} x {wide}, one behind the other"
    assert says in named(SQUARE, _of_weight(high, wide, stored_so))


def test_a_bug_beside_which_nothing_is_written():
    """A stride of 2 for 1, in the right answer's shape."""

    def wrong(op, inputs, params):
        right, y = answer(op, inputs, params), answer(op, inputs, {**params, "stride": 2})
        whole = np.zeros_like(right)
        whole[:, :, : y.shape[2], : y.shape[3]] = y
        return whole

    told = named("conv2d/f32/3x3-n2-c33-k20-h9-w14", wrong)[0]
    assert told.startswith("stride is 2, not 1, and nothing is computed: zeros, at ")


def test_filters_dealt_to_the_groups_in_turn():
    """Where a group has more filters than there are groups, the inverse order would be another."""

    def wrong(op, inputs, params):
        x, weight, bias = (inputs[name].values() for name in ("x", "weight", "bias"))
        groups = params["groups"]
        own = np.split(x, groups, axis=1)
        alone = {**params, "groups": 1}
        one = lambda k: {
            "x": stored(own[k % groups]),
            "weight": stored(weight[k : k + 1]),
            "bias": stored(bias[k : k + 1]),
        }
        return np.concatenate([answer(op, one(k), alone) for k in range(len(weight))], axis=1)

    assert named("conv2d/f32/groups-n2-c24-k18-h9-w11", wrong)[0] == "filters dealt to the groups in turn"


@pytest.mark.parametrize("type", ["q8_0", "q4_k", "q6_k", "q5_1"])
def test_blocks_computed_in_float16(type):
    tensor = realize(Recipe((5, 512), type), "x")
    kind = BLOCK_TYPES[type]
    p = parts_of(type, np.ascontiguousarray(tensor.data.reshape(-1, kind.bytes)))
    assert p is not None
    codes = (p.low.astype(int) | p.high.astype(int) << p.bits) - p.z
    half = lambda t: np.repeat(t.astype(np.float16), codes.shape[1] // p.s.shape[1], axis=1)
    y = half(p.d * p.s) * codes.astype(np.float16) - half(p.dmin * p.m)
    assert y.dtype == np.float16
    names = [
        name
        for name, values in wrong_values(tensor)
        if np.array_equal(values.ravel(), y.ravel().astype(np.float32))
    ]
    assert names == [] if np.array_equal(y, p.values()) else f"{type}: values computed in float16" in names


def test_nothing_is_told_of_a_softmax_that_is_nan_throughout():
    assert named("softmax/f32/hidden-x2x2x20x33", lambda *call: answer(*call) * np.nan) == []
