"""Block types put together again from their parts, and with one part read otherwise."""

import numpy as np
import pytest

from refsd.causes.operation.block_parts import parts_of, wrong_values
from refsd.golden.recipe import Recipe, realize
from refsd.kernels.quant import BLOCK_TYPES

TYPES = (
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "iq4_nl",
    "iq4_xs",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "mxfp4",
    "nvfp4",
)


@pytest.mark.parametrize("type", TYPES)
def test_the_parts_give_the_values(type):
    tensor = realize(Recipe((5, 512), type), "x")
    parts = parts_of(type, tensor.data.reshape(-1, BLOCK_TYPES[type].bytes))
    assert parts is not None
    np.testing.assert_array_equal(parts.values().reshape(5, 512).astype(np.float32), tensor.values())


@pytest.mark.parametrize("type", TYPES)
def test_no_wrong_reading_is_the_right_one_and_few_are_alike(type):
    tensor = realize(Recipe((5, 512), type), "x")
    wrong = dict(wrong_values(tensor))
    assert len(wrong) >= 10
    assert all(name.startswith(f"{type}: ") for name in wrong)
    assert not any(np.array_equal(y, tensor.values()) for y in wrong.values())
    assert len({y.tobytes() for y in wrong.values()}) > 0.6 * len(wrong)


def test_a_type_without_parts_gives_nothing():
    assert list(wrong_values(realize(Recipe((2, 256), "iq2_xs"), "x"))) == []
    assert list(wrong_values(realize(Recipe((2, 256), "f16"), "x"))) == []
