"""Scales whose bits are read as another type are told; other wrong scales are not."""

import numpy as np

from refsd.causes.operation.scale_bits import scale_bits
from refsd.golden.recipe import Recipe, realize

TENSOR = realize(Recipe((8, 96), "q4_0"), "x")
BLOCKS = TENSOR.data.reshape(-1, 18)
CODES = np.concatenate([BLOCKS[:, 2:] & 15, BLOCKS[:, 2:] >> 4], axis=1).astype(np.float64) - 8


def _values(d):
    with np.errstate(all="ignore"):
        return (d.astype(np.float64) * CODES).reshape(8, 96)


def _named(found):
    return [name for name, y in scale_bits(TENSOR) if np.allclose(y, found, rtol=1e-6, equal_nan=True)]


def test_bits_read_as_another_type():
    bits = BLOCKS[:, :2].copy().view("<u2")
    assert _named(_values(bits)) == ["q4_0: d read as the number that its bits count"]
    assert _named(_values(bits.byteswap().view(np.float16))) == [
        "q4_0: d read as a float16 with its bytes exchanged"
    ]


def test_other_scales_and_types():
    d = BLOCKS[:, :2].copy().view("<f2")
    assert not _named(_values(d)) and not _named(_values(1.01 * d.astype(np.float64)))
    assert not list(scale_bits(realize(Recipe((8, 96), "f16"), "x")))
