"""No rounding moves a number further than rounding.py says."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from refsd.golden.rounding import gamma, moved, moved_by_type, unit
from refsd.kernels.quant import BLOCK_TYPES

_FLOATS = st.floats(-1e5, 1e5, width=32)


@given(hnp.arrays(np.float32, 40, elements=st.floats(-7e4, 7e4, width=32, allow_subnormal=True)))
def test_rounding_to_a_dtype(x):
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32):
        with np.errstate(over="ignore"):
            error = np.abs(x.astype(dtype).astype(np.float64) - x)
        bound = moved(x.astype(np.float64), np.dtype(dtype))
        assert (error <= bound).all()


def test_what_is_representable_does_not_move():
    assert not moved(np.array([1.0, 0.5, 65504, 0, 2**-24]), np.dtype(np.float16)).any()
    assert moved(np.array([65536.0]), np.dtype(np.float16))[0] == np.inf
    assert moved(np.array([2**-26]), np.dtype(np.float16))[0] >= 2**-26


@pytest.mark.parametrize(("kind", "block"), [("q8_0", 32), ("q8_1", 32), ("q8_k", 256)])
@given(data=st.data())
def test_packing_activations_into_blocks(kind, block, data):
    x = data.draw(hnp.arrays(np.float32, (2, block), elements=_FLOATS))
    block_type = BLOCK_TYPES[kind]
    packed = block_type.dequantize(block_type.quantize_activation(x)).astype(np.float64)
    bound = moved_by_type(x.astype(np.float64), kind)
    assert (np.abs(packed - x) <= bound * (1 + 1e-6) + 1e-37).all()


def test_blocks_scale_with_their_largest_value():
    x = np.ones((2, 32))
    x[1, 5] = 100
    bound = moved_by_type(x, "q8_0")
    assert (bound[1] > 99 * bound[0]).all()


def test_gamma():
    u = unit(np.dtype(np.float32))
    assert gamma(3, u) == pytest.approx(3 * u)
    assert gamma(2**24, u) == np.inf
