"""Counted against numpy, in every type, on either side of a chunk's end."""

import numpy as np
import pytest

from refsd.files import finite
from refsd.files.finite import CHUNK, HALVES, not_finite
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.tensor import SCALAR_TYPES, Scaling, StoredTensor, stored


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


@pytest.mark.jitted
@pytest.mark.parametrize("type", HALVES)
def test_the_scales_of_packed_types_tell_what_their_values_do(type):
    """Random bytes, so that one block in 32 or so has an infinite scale; then none."""
    block = BLOCK_TYPES[type]
    blocks = np.random.default_rng(0).integers(0, 256, (200, block.bytes), np.uint8)

    def counted():
        values = block.dequantize(blocks)
        return not_finite(StoredTensor(type, values.shape, blocks.reshape(-1))), np.count_nonzero(
            ~np.isfinite(values)
        )

    found, true = counted()
    assert found == true > 0
    for at in HALVES[type]:
        blocks[:, at] = 0x7B  # the largest exponent that is a number's
    assert counted() == (0, 0)


@pytest.mark.parametrize("type", ["f8_e4m3", "f8_e5m2"])
def test_eight_bit_floats_are_widened_some_rows_at_a_time(type, monkeypatch):
    monkeypatch.setattr(finite, "UNPACKED", 64)
    codes = np.zeros((7, 20), np.uint8)
    codes[5, 3] = codes[6, 19] = 0x7F
    assert not_finite(StoredTensor(type, (7, 20), codes)) == 2
    assert not_finite(StoredTensor(type, (140,), codes.reshape(-1))) == 2
    assert not_finite(StoredTensor(type, (0, 20), codes[:0])) == 0


def test_nothing():
    assert not_finite(stored(np.zeros((0, 3), np.float32))) == 0


@pytest.mark.parametrize("shape", [(5,), (5, 7), (35,)])
@pytest.mark.parametrize("scaling", [None, Scaling(np.float32([2]))])
def test_eight_bit_floats_are_expanded_piece_by_piece(monkeypatch, shape, scaling):
    """One row of a file may be larger than memory."""
    monkeypatch.setattr(finite, "UNPACKED", 4)
    codes = np.zeros(shape, np.uint8)
    codes.reshape(-1)[[0, 3, 4]] = 0x7F  # NaN
    longest = []
    expand = StoredTensor.values
    monkeypatch.setattr(StoredTensor, "values", lambda self: longest.append(self.data.size) or expand(self))
    assert not_finite(StoredTensor("f8_e4m3", shape, codes.view(SCALAR_TYPES["f8_e4m3"]), scaling)) == 3
    assert max(longest) == 4
