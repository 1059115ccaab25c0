"""Counted against numpy, in every type, on either side of a chunk's end."""

import numpy as np
import pytest

from refsd.golden.tensor import SCALAR_TYPES, StoredTensor, stored
from refsd.weights.finite import CHUNK, not_finite


@pytest.mark.parametrize("type", ["f16", "bf16", "f32", "f64"])
def test_floats(type):
    dtype = SCALAR_TYPES[type]
    values = np.random.default_rng(0).standard_normal(2 * CHUNK + 5)
    values[[0, 1, CHUNK - 1, CHUNK, 2 * CHUNK, -1]] = [np.nan, -np.nan, np.inf, -np.inf, np.nan, np.inf]
    assert not_finite(stored(values.astype(dtype))) == 6
    assert not_finite(stored(values[2 : CHUNK - 1].astype(dtype))) == 0


@pytest.mark.parametrize(
    ("dtype", "largest"), [(np.float16, 65504), (np.float32, 3.4028235e38), (np.float64, 1.79e308)]
)
def test_the_largest_numbers_are_numbers(dtype, largest):
    tiny = np.nextafter(dtype(0), dtype(1))
    assert not_finite(stored(np.array([[largest, -largest, 0, tiny]], dtype))) == 0


def test_integers_are_finite():
    assert not_finite(stored(np.full(3, -1))) == 0
    assert not_finite(stored(np.full(3, 255, np.uint8))) == 0


@pytest.mark.parametrize(("type", "bytes", "elements"), [("q8_0", 34, 32), ("q4_0", 18, 32)])
def test_packed(type, bytes, elements):
    """A block's scale is the float16 that it begins with."""
    blocks = np.ones((5, bytes), np.uint8)
    blocks[3, :2] = np.array([np.nan], np.float16).view(np.uint8)
    tensor = StoredTensor(type, (5, elements), blocks.reshape(-1))
    assert not_finite(tensor) == elements
    assert not_finite(tensor._replace(shape=(3, elements), data=blocks[:3].reshape(-1))) == 0


def test_nothing():
    assert not_finite(stored(np.zeros((0, 3), np.float32))) == 0
