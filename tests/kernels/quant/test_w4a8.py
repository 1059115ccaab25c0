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


def test_a_quantized_code_is_the_nearest():
    """Of the 16 numbers that its group's scale makes; and the scale is about the one of least squares."""
    w = np.random.default_rng(2).standard_normal((9, 96)).astype(np.float32) * np.float32(0.02)
    w[3], w[4, :16] = 0, 0
    codes, scale, of_rows = w4a8.encode(w)
    assert codes.dtype == np.uint8 and scale.shape == (9, 6) and of_rows.shape == (9,)
    every = [w4a8.decode(np.full_like(codes, c), scale, w4a8.USUAL_TABLE).astype(np.float64) for c in range(16)]
    far = np.abs(np.array(every) * of_rows[:, None] - w)
    chosen = np.take_along_axis(far, codes[None].astype(int), 0)[0]
    assert (chosen <= far.min(axis=0) + 1e-6 * np.abs(w).max()).all()
    assert 0.06 < np.linalg.norm(chosen) / np.linalg.norm(w) < 0.08 and chosen[3].max() < 1e-6


def test_one_outlier_sets_the_row_and_not_the_groups():
    w = np.random.default_rng(3).standard_normal((2, 64)).astype(np.float32)
    w[0, 5] = 100
    codes, scale, of_rows = w4a8.encode(w)
    q = w4a8.decode(codes, scale, w4a8.USUAL_TABLE) * of_rows[:, None]
    half_a_step = 100 * (1 - w4a8.USUAL_TABLE[-2] / w4a8.USUAL_TABLE[-1]) / 2
    assert np.abs(q[0, 5] - 100) < half_a_step and np.linalg.norm((q - w)[0, 16:]) < 0.25 * np.linalg.norm(
        w[0, 16:]
    )
