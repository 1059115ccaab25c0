"""Codes under one scale a group against the second opinion, code by code."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive.quant import grouped as naive
from naive.quant.scaled import float8

from refsd.kernels.quant import grouped

ALL = np.arange(16)


def test_the_tables():
    assert (grouped.TABLES["nvfp4"] == naive.e2m1(ALL)).all()
    assert np.signbit(grouped.TABLES["nvfp4"][8]), "minus zero"
    assert grouped.TABLES["fp4"].tobytes() == naive.fp4(ALL).astype(np.float32).tobytes(), "one zero"
    mxfp8 = float8(np.arange(256), 4).astype(np.float32)
    assert np.array_equal(grouped.TABLES["mxfp8"], mxfp8, equal_nan=True)
    nf4 = grouped.TABLES["nf4"]
    assert (np.diff(nf4) > 0).all() and (nf4[[0, 7, 15]] == [-1, 0, 1]).all()


def test_nf4_has_a_normal_distributions_quantiles():
    """Quantiles, eight of them to the right of zero and seven to its left, the largest 1."""
    from scipy.stats import norm

    right = norm.ppf(np.linspace(0.9677083, 0.5, 9)[:-1])
    left = -norm.ppf(np.linspace(0.9677083, 0.5, 8)[:-1])
    values = np.sort([*left, 0, *right]) / right.max()
    assert abs(values - grouped.TABLES["nf4"]).max() < 1e-6


@pytest.mark.parametrize("kind", ["nf4", "fp4", "nvfp4"])
@given(
    n=st.integers(1, 200).map(lambda n: 2 * n),
    group=st.sampled_from([2, 16, 32, 64]),
    seed=st.integers(0, 2**32 - 1),
)
def test_two_codes_a_byte(kind, n, group, seed):
    """A last group may be cut short."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, n // 2, np.uint8)
    scale = np.ldexp(rng.standard_normal(-(-n // group)), rng.integers(-20, 20)).astype(np.float32)
    y = grouped.dequantize(codes, grouped.TABLES[kind], scale, group)
    expected = naive.expand(naive.codes(codes), grouped.TABLES[kind], scale, group).astype(np.float32)
    assert y.dtype == np.float32 and y.tobytes() == expected.tobytes()


@given(n=st.integers(1, 100), seed=st.integers(0, 2**32 - 1))
def test_one_code_a_byte(n, seed):
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 0x7F, n, np.uint8) | rng.integers(0, 2, n, np.uint8) << np.uint8(7)
    scale = np.exp2(rng.integers(-60, 60, -(-n // 32))).astype(np.float32)
    y = grouped.dequantize(codes, grouped.TABLES["mxfp8"], scale, 32)
    assert (y == naive.expand(np.arange(n), float8(codes, 4), scale, 32).astype(np.float32)).all()


@given(rows=st.integers(1, 260), columns=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_scales_are_put_back_in_rows(rows, columns, seed):
    scales = np.random.default_rng(seed).integers(0, 256, (rows, columns), np.uint8)
    assert (grouped.in_rows(naive.in_tiles(scales), rows, columns) == scales).all()
