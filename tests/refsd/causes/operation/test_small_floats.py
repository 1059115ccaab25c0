"""The second reader of small floats agrees with the first, and what it misreads differs where it should."""

import ml_dtypes
import numpy as np
import pytest

from refsd.causes.operation.small_floats import misread_floats
from refsd.numerics.tensor import Scaling, StoredTensor, stored


def _all_codes(type, dtype):
    bits = np.dtype(dtype).itemsize * 8
    codes = np.arange(2**bits, dtype=f"u{bits // 8}").view(dtype)
    return StoredTensor(type, codes.shape, codes, Scaling(np.array([0.5], np.float32)) if bits == 8 else None)


@pytest.mark.parametrize(
    ("type", "dtype"),
    [("f8_e4m3", ml_dtypes.float8_e4m3fn), ("f8_e5m2", ml_dtypes.float8_e5m2), ("f16", np.float16)],
)
def test_only_the_codes_that_are_named_are_misread(type, dtype):
    tensor = _all_codes(type, dtype)
    right = np.asarray(tensor.values(), np.float32)
    wrong = dict(misread_floats(tensor))
    finite = np.isfinite(right)
    numbers = wrong[f"{type}: NaN and infinity codes read as numbers"]
    assert np.array_equal(numbers[finite], right[finite]) and np.isfinite(numbers).all()
    flushed = wrong[f"{type}: subnormals (exponent 0) taken for zero"]
    changed = ~np.isclose(flushed, right, rtol=0, atol=0, equal_nan=True)
    assert changed.any() and not flushed[changed].any()
    assert np.abs(right[changed]).max() < np.abs(right[~changed & finite & (right != 0)]).min()
    assert np.array_equal(wrong[f"{type}: the sign bit read the other way"][finite], -right[finite])


def test_the_bits_of_another_type():
    x = stored(np.array([1.0, -2.5], ml_dtypes.bfloat16))
    wrong = dict(misread_floats(x))["bf16: its bits read as f16"]
    assert np.array_equal(wrong, x.data.view(np.float16).astype(np.float32))


def test_no_other_type_is_read():
    assert not [*misread_floats(stored(np.ones(3, np.float32)))]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_lower_byte_with_a_sign(dtype):
    """Two bytes as Java has them, the upper one times 256, and added."""
    x = stored(np.array([1.0, 1.19, -2.5, 3.14159, 0.1], dtype))
    pairs = x.data.view(np.int8).reshape(-1, 2).astype(np.int64)
    wrong = (pairs[:, 0] + pairs[:, 1] * 256).astype(np.uint16).view(dtype).astype(np.float32)
    told = [name for name, values in misread_floats(x) if np.array_equal(values, wrong)]
    assert len(told) == 1 and "lower byte is added as a signed number" in told[0]


def test_subnormals_twice_as_large():
    x = _all_codes("f8_e5m2", ml_dtypes.float8_e5m2)
    right = np.asarray(x.values(), np.float32)
    small = (np.arange(256) & 127) < 4
    wrong = dict(misread_floats(x))["f8_e5m2: subnormals (exponent 0) doubled: 2^(2 - bias) for 2^(1 - bias)"]
    assert np.array_equal(wrong, np.where(small, 2 * right, right), equal_nan=True)
