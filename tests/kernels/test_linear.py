"""The linear layer against a sum of outer products, over every type that a weight may be stored in."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from naive.linear import linear as naive

from refsd.kernels.linear import linear
from refsd.kernels.linear_packed import applies, linear_packed, pack
from refsd.kernels.microkernel import ROWS, lanes
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor, stored


@given(lead=st.sampled_from([(1,), (2, 33), (2, 1, 5), ()]), K=st.integers(1, 80), O=st.integers(1, 40))
@example(lead=(2, 77), K=320, O=33)
def test_shapes(lead, K, O):
    rng = np.random.default_rng(K)
    x, weight, bias = rng.standard_normal((*lead, K)), rng.standard_normal((O, K)), rng.standard_normal(O)
    expected = naive(x, weight, bias)
    np.testing.assert_allclose(linear(x, weight, bias), expected, atol=1e-13 * K)
    np.testing.assert_allclose(linear(x, weight), expected - bias, atol=1e-13 * K)
    y = linear(*(t.astype(np.float32) for t in (x, weight, bias)))
    assert y.dtype == np.float32
    assert np.linalg.norm(y - expected) <= 1e-6 * (1 + np.linalg.norm(expected))


@given(
    lead=st.sampled_from([(1,), (2, 33), (2, 1, 5), (ROWS,), (3, ROWS + 1)]),
    K=st.integers(1, 150),
    panels=st.integers(1, 3),
    dtype=st.sampled_from([np.float32, np.float64]),
    turned=st.booleans(),
)
@example(lead=(2, 77), K=320, panels=2, dtype=np.float32, turned=True)
@example(lead=(2, 7), K=8200, panels=2, dtype=np.float32, turned=False)
def test_packed_weights(lead, K, panels, dtype, turned):
    """Integers make every sum exact; x may be a transposed view."""
    rng = np.random.default_rng(K)
    O = panels * lanes(dtype)
    draw = lambda *shape: rng.integers(-9, 9, shape).astype(dtype)
    x = draw(K, *lead).transpose(*range(1, 1 + len(lead)), 0) if turned else draw(*lead, K)
    weight, bias = draw(O, K), draw(O)
    kept = pack(weight)
    assert kept.shape == weight.shape and kept.nbytes == weight.nbytes
    for added in (bias, None):
        y = linear_packed(x, kept, added)
        assert y.dtype == dtype and y.flags.c_contiguous
        np.testing.assert_array_equal(y, naive(x, weight, np.zeros(O) if added is None else added))


def test_only_whole_panels_are_packed():
    width = lanes(np.float32)
    assert applies((2, 16, 5), (3 * width, 5), np.float32)
    assert applies((1, 5), (3 * width, 5), np.float32)
    assert not applies((0, 5), (3 * width, 5), np.float32)
    assert not applies((2, 16, 5), (3 * width + 1, 5), np.float32)


def _weight(kind: str, rng) -> StoredTensor:
    """[5, 512] of a type: numbers where elements stand alone, else random blocks whose numbers are finite."""
    if kind in SCALAR_TYPES:
        return stored(rng.standard_normal((5, 512)).astype(SCALAR_TYPES[kind]))
    block_type = BLOCK_TYPES[kind]
    with np.errstate(all="ignore"):
        blocks = rng.integers(0, 256, (6 * 5 * 512 // block_type.block, block_type.bytes), np.uint8)
        values = block_type.dequantize(blocks)
        calm = (np.isfinite(values) & (np.abs(values) < 1e4)).all(axis=1)
    blocks = blocks[calm][: 5 * 512 // block_type.block]
    return StoredTensor(kind, (5, 512), blocks.reshape(-1))


@pytest.mark.parametrize("kind", ["f64", "f32", "f16", "bf16", *BLOCK_TYPES])
def test_every_type_of_weight(kind):
    """x times a stored weight is x times the weight's numbers, row for row of blocks."""
    rng = np.random.default_rng(0)
    weight, x, bias = _weight(kind, rng), rng.standard_normal((3, 512)), rng.standard_normal(5)
    expected = naive(x, weight.values().astype(np.float64), bias)
    assert np.isfinite(expected).all() and np.ptp(expected, axis=1).min() > 0
    norm = np.linalg.norm(expected)
    double, single = Arithmetic(FLOAT64), Arithmetic(FLOAT32)
    y = double.linear(x, double.expand(weight), bias, kind)
    assert np.linalg.norm(y - expected) <= 1e-13 * norm
    y = single.linear(x.astype(np.float32), single.expand(weight), bias.astype(np.float32), kind)
    assert y.dtype == np.float32 and np.linalg.norm(y - expected) <= 2e-6 * norm
