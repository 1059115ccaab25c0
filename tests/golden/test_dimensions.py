"""Shapes as the pages declare them, in other sizes."""

import pytest

from refsd.cases import CASES
from refsd.golden import dimensions
from refsd.golden.operations import OPERATIONS
from refsd.numerics.errors import BadInput


def _asked(name):
    case = CASES[name]
    op = OPERATIONS[case.op]
    return op, {k: tuple(recipe.shape) for k, recipe in case.inputs.items()}, {**op.params, **case.params}


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_case_is_as_its_page_declares(op):
    for case in OPERATIONS[op].cases:
        dimensions.check(*_asked(case.name))


@pytest.mark.parametrize(
    ("case", "changes", "shapes"),
    [
        ("conv2d/f32/groups-n2-c24-k18-h9-w11", {"C": 6}, {"x": (2, 6, 9, 11), "weight": (18, 2, 3, 3)}),
        ("layer_norm/f32/plain-x2x77x64", {"D": 3, "...0": 5}, {"x": (5, 77, 3), "weight": (3,)}),
        ("unpatchify/f32/outer-n2-l12-d20", {"C": 1}, {"x": (2, 12, 4)}),
        ("attention/f32/keys-masked-b2-l33-j77-h2-d32", {"J": 4}, {"k": (2, 4, 2, 32), "mask": (2, 1, 1, 4)}),
        ("softmax/f32/sinks-x2x3x20x33", {"H": 2}, {"x": (2, 2, 20, 33), "sinks": (2,)}),
        ("concat/f32/width-n2-c3-h5", {dimensions.OWN_AXIS: 1}, {"a": (2, 3, 5, 4), "b": (2, 3, 5, 1)}),
        ("lokr/f32/full-x2x33x77-o4x6", {"I1": 1}, {"x": (2, 33, 11), "w1": (4, 1)}),
        ("add/f32/channel-2x6x5x7-1x6x1x1", {"...1": 2}, {"a": (2, 2, 5, 7), "b": (1, 2, 1, 1)}),
    ],
)
def test_a_size_changes_wherever_it_stands(case, changes, shapes):
    op, before, params = _asked(case)
    sizes = dimensions.sizes_of(op, before, params)
    after = dimensions.with_sizes(op, before, params, sizes | changes)
    assert {name: after[name] for name in shapes} == shapes
    assert {name for name, shape in after.items() if shape != before[name]} <= shapes.keys() | {"bias", "v"}
    dimensions.check(op, after, params)


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("conv2d/f32/groups-n2-c24-k18-h9-w11", {"C": 4}),  # groups 3
        ("conv2d/f32/groups-n2-c24-k18-h9-w11", {"K": 4}),
        ("conv2d/f32/5x3-n2-c7-k20-h9-w13", {"R": 20}),
        ("group_norm/f32/groups-n3-c33-h4-w5-g11", {"C": 32}),
        ("attention/f32/grouped-b2-l20-j33-h6-d32-g2", {"G": 4}),
        ("patchify/f32/three-n1-c7-h6-w9", {"W": 4}),
        ("pixel_shuffle/f32/n2-c20-h3-w5", {"C": 6}),
        ("rope/f32/partial-n2-l9-h3-d32", {"D": 18}),
        ("pad/f32/reflect-n2-c5-h6-w8", {"H": 2}),
        ("max_pool2d/f32/border-n2-c7-h9-w12", {"H": 0}),
        ("layer_norm/f32/plain-x2x77x64", {"D": 0}),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(case, changes):
    op, before, params = _asked(case)
    sizes = dimensions.sizes_of(op, before, params)
    with pytest.raises(BadInput):
        dimensions.check(op, dimensions.with_sizes(op, before, params, sizes | changes), params)


def test_ids_stay_below_their_table():
    op, before, params = _asked("embedding/f32/v33-d256")
    assert dimensions.limit_of(op, "ids", dimensions.sizes_of(op, before, params)) == 33
    assert dimensions.limit_of(op, "weight", {"V": 33}) is None
