"""W4A8 and W6A8 against fractions, every code, every tie."""

import ml_dtypes
import numpy as np
import pytest
from naive.quant import w4a8 as naive

from refsd.kernels.quant import w4a8


def _case(bits, with_table, seed=1):
    rng = np.random.default_rng(seed)
    packed = rng.integers(0, 256, (6, 32 * bits // 8)).astype(np.uint8)
    scale = (rng.uniform(0.5, 130, (6, 2))).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return packed, scale / (1 if with_table else 2 ** (bits - 2)), w4a8.USUAL_TABLE if with_table else None


@pytest.mark.parametrize(("bits", "with_table"), [(4, True), (4, False), (6, False)])
@pytest.mark.parametrize("seed", range(4))
def test_against_fractions(bits, with_table, seed):
    packed, scale, table = _case(bits, with_table, seed)
    q = w4a8.decode(w4a8.unpack(packed, bits), scale, table, bits)
    assert q.dtype == np.int8 and q.tolist() == naive.decoded(packed, scale, table, bits)


@pytest.mark.parametrize("bits", [4, 6])
def test_every_code_at_every_place(bits):
    columns = 64
    codes = (np.arange(64)[:, None] + np.arange(columns)) % 2**bits
    packed = np.zeros((64, columns * bits // 8), np.uint8)
    packed[:, : columns // 2] = codes[:, ::2] % 16 | codes[:, 1::2] % 16 << 4
    for j in range(4 * (bits == 6)):
        packed[:, columns // 2 :] |= (codes[:, j::4] >> 4 << 2 * j).astype(np.uint8)
    assert (w4a8.unpack(packed, bits) == codes).all()


def test_every_signed_code():
    assert w4a8.signed(np.arange(16, dtype=np.uint8)).tolist() == [*range(8), *range(-8, 0)]


def test_ties_are_even_and_the_ends_are_127():
    codes = np.arange(16, dtype=np.uint8)[None]
    ties = w4a8.decode(codes, np.float32([[2.5]]))
    assert ties[0].tolist() == [-20, -18, -15, -12, -10, -8, -5, -2, 0, 2, 5, 8, 10, 12, 15, 18]
    ends = w4a8.decode(codes, np.float32([[448]]))
    assert ends[0].tolist() == [-127] * 8 + [0] + [127] * 7
    assert not w4a8.decode(codes, np.float32([[0]]), w4a8.USUAL_TABLE).any()


def test_the_usual_table_rises_and_has_no_zero():
    assert (np.diff(w4a8.USUAL_TABLE) > 0).all() and abs(w4a8.USUAL_TABLE).min() > 0.05
