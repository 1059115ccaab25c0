"""Wider floats and scaled weights: every code against ml_dtypes and NumPy, rotations against the whole matrix."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive.quant import scaled as naive

from refsd.kernels.quant import bf16, convrot, f8_e4m3, f8_e5m2, f16, int8_scaled


def assert_same_bits(ours, theirs):
    assert ours.dtype == theirs.dtype == np.float32 and ours.shape == theirs.shape
    assert ((ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))).all()


@pytest.mark.parametrize(("module", "dtype"), [(f16, np.float16), (bf16, ml_dtypes.bfloat16)])
def test_every_16_bit_float(module, dtype):
    codes = np.arange(65536, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        expected = codes.view(dtype).astype(np.float32)
    out = np.full(65536, np.nan, np.float32)
    assert module.dequantize(codes, out=out) is out
    assert_same_bits(out, expected)
    assert_same_bits(module.dequantize(codes), expected)


@pytest.mark.parametrize(
    ("module", "dtype", "exponent"), [(f8_e4m3, ml_dtypes.float8_e4m3fn, 4), (f8_e5m2, ml_dtypes.float8_e5m2, 5)]
)
def test_every_8_bit_float(module, dtype, exponent):
    codes = np.arange(256, dtype=np.uint8)
    expected = codes.view(dtype).astype(np.float32)
    assert_same_bits(module.dequantize(codes), expected)
    assert_same_bits(expected, naive.float8(codes, exponent).astype(np.float32))
    scale = np.float32(0.0123)
    assert_same_bits(module.dequantize(codes, scale), expected * scale)
    out = np.full(256, np.nan, np.float32)
    assert module.dequantize(codes, out=out) is out


def test_8_bit_floats_are_float16s():
    """stable-diffusion.cpp widens to float16 on load: nothing is lost, and E5M2 is the upper byte of one."""
    codes = np.arange(256, dtype=np.uint8)
    assert_same_bits(f8_e5m2.dequantize(codes), f16.dequantize(codes.astype(np.uint16) << 8))
    wide = f8_e4m3.dequantize(codes)
    assert_same_bits(wide.astype(np.float16).astype(np.float32), wide)
    assert np.isnan(wide[[0x7F, 0xFF]]).all() and np.isnan(wide).sum() == 2
    assert (wide[[0x7E, 0x01, 0x38, 0xB8]] == [448, 2.0**-9, 1, -1]).all()


def matrices(group=1):
    return st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32 - 1)).map(
        lambda s: np.random.default_rng(s[2]).integers(-128, 128, (s[0], s[1] * group), np.int8)
    )


@settings(deadline=None, max_examples=20)
@given(matrices(), st.booleans())
def test_int8(codes, by_row):
    scale = np.float32(0.01) * np.arange(1, 1 + (len(codes) if by_row else 1)).astype(np.float32)
    expected = naive.int8(codes, scale).astype(np.float32)
    assert_same_bits(int8_scaled.dequantize(codes, scale), expected)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from([4, 16, 64]).flatmap(lambda group: st.tuples(st.just(group), matrices(group))))
def test_convrot(case):
    group, codes = case
    scale = np.linspace(0.01, 0.02, len(codes)).astype(np.float32)
    y, expected = convrot.dequantize(codes, scale, group), naive.convrot(codes, scale, group)
    # one rounding; the sums are whole numbers
    assert (abs(y - expected) <= 2.0**-24 * abs(expected) + 1e-300).all()


def test_the_usual_group():
    codes = np.random.default_rng(2).integers(-127, 128, (3, 512), np.int8)
    scale = np.float32([0.5, 0.25, 3])
    expected = naive.convrot(codes, scale, 256)
    assert (abs(convrot.dequantize(codes, scale) - expected) <= 2.0**-24 * abs(expected)).all()
    # one code alone, by hand: row 0 of H is [1, 1, 1, -1] over and over, its sign the product of the levels'
    one = np.zeros((1, 256), np.int8)
    one[0, 0] = 16
    y = convrot.dequantize(one, np.float32([1]))[0]
    threes = [sum(digit == "3" for digit in np.base_repr(i, 4)) for i in range(256)]
    assert (y == [(-1) ** n for n in threes]).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rotated_twice_is_the_same(dtype):
    x = np.random.default_rng(4).standard_normal((3, 128)).astype(dtype)
    y = convrot.rotate(x, 64)
    assert y.dtype == dtype
    eps = np.finfo(dtype).eps
    assert abs(y - naive.rotate(x, 64)).max() <= 16 * eps and abs(convrot.rotate(y, 64) - x).max() <= 16 * eps


def test_rows_are_packed_and_come_back():
    x = np.random.default_rng(5).standard_normal((7, 96)).astype(np.float32)
    x[3] = 0
    codes, scale = int8_scaled.quantize(x)
    assert (abs(codes).max(axis=1) == [127, 127, 127, 0, 127, 127, 127]).all()
    assert (abs(int8_scaled.dequantize(codes, scale) - x) <= 0.5001 * scale[:, None]).all()
