"""Winograd's convolutions against the naive ones; their matrices against a derivation.

Relative L2, measured over 320 to 2560 channels: F(2x2) float32 3.3e-7, F(4x4) float32 2.2e-6.
"""

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from naive.conv2d import conv2d as naive
from naive.conv2d_winograd import POINTS, cook_toom
from naive.conv2d_winograd import conv2d_winograd as naive_winograd

from refsd.kernels import conv2d_winograd as module
from refsd.kernels import conv2d_winograd2, conv2d_winograd4
from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.conv2d_winograd import bytes_of_filters, conv2d_winograd, transform_filters

PADDINGS = st.sampled_from([(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 0, 1), (2, 0, 1, 3)])
TILES = {2: conv2d_winograd2, 4: conv2d_winograd4}


def image(N, C, H, W, K):
    rng = np.random.default_rng(H * W)
    return rng.standard_normal((N, C, H, W)), rng.standard_normal((K, C, 3, 3)), rng.standard_normal(K)


def error(y, expected):
    assert y.shape == expected.shape
    return np.linalg.norm(y - expected) / max(np.linalg.norm(expected), 1e-30)


def single(*arrays):
    return tuple(a.astype(np.float32) for a in arrays)


@pytest.mark.parametrize("tile", TILES)
@given(
    N=st.integers(1, 2),
    C=st.integers(1, 5),
    H=st.integers(3, 14),
    W=st.integers(3, 33),
    K=st.integers(1, 14),
    padding=PADDINGS,
)
@example(N=2, C=4, H=4, W=7, K=3, padding=(1, 1, 1, 1))
@example(N=1, C=1, H=3, W=3, K=1, padding=(0, 0, 0, 0))
@example(N=1, C=3, H=14, W=41, K=13, padding=(1, 1, 1, 1))
def test_winograd(tile, N, C, H, W, K, padding):
    x, weight, bias = image(N, C, H, W, K)
    expected = naive(x, weight, bias, 1, padding)
    assert error(conv2d_winograd(x, transform_filters(weight, tile), bias, padding), expected) <= 1e-13
    x, weight, bias = single(x, weight, bias)
    y = conv2d_winograd(x, transform_filters(weight, tile), bias, padding)
    assert y.dtype == np.float32
    assert error(y, expected) <= 5e-6
    np.testing.assert_array_equal(conv2d_winograd(x, weight, bias, padding, tile), y)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("budget", [1, 5000])
def test_blocks_join_without_a_seam(tile, budget, monkeypatch):
    x, weight, bias = image(2, 3, 13, 18, 27)
    whole = conv2d_winograd(x, transform_filters(weight, tile), bias, (1, 1, 1, 1))
    monkeypatch.setattr(module, "_BUDGET", budget)
    monkeypatch.setattr(module, "_FILTERS", budget)
    np.testing.assert_array_equal(conv2d_winograd(x, weight, bias, (1, 1, 1, 1), tile), whole)


@pytest.mark.parametrize("tile", TILES)
def test_the_second_opinion_agrees_with_the_definition(tile):
    x, weight, bias = image(2, 3, 7, 9, 4)
    assert (
        error(naive_winograd(x, weight, bias, (1, 1, 0, 2), tile), naive(x, weight, bias, 1, (1, 1, 0, 2))) <= 1e-14
    )


@pytest.mark.parametrize("tile", TILES)
def test_the_derived_matrices_are_exact(tile):
    AT, G, BT = cook_toom(tile, 3, POINTS[tile])
    for a in range(3):
        for b in range(tile + 2):
            g, d = (np.array([Fraction(int(i == j)) for i in range(n)]) for n, j in ((3, a), (tile + 2, b)))
            expected = [Fraction(int(p + a == b)) for p in range(tile)]
            assert (AT @ ((G @ g) * (BT @ d))).tolist() == expected


def matrices(tile):
    """The kernels' own A^T, G, B^T, read off what they do to a row of ones in one place."""
    kernels, n = TILES[tile], tile + 2
    G = np.empty((n, 3))
    for s in range(3):
        weight, u = np.zeros((1, 1, 3, 3)), np.zeros((n * n, 1, 1))
        weight[0, 0, 0, s] = 1
        kernels.transform_weight(weight, u)
        G[:, s] = u.reshape(n, n)[0] / G_FIRST[tile]
    BT = np.empty((n, n))
    for j in range(n):
        x, v = np.zeros((1, n, n)), np.zeros((n * n, 1, 1, 1))
        x[0, 1, j] = 1
        kernels.transform_input(x, (0, 0), 0, 1, 1, v)
        BT[:, j] = v.reshape(n, n)[1] / B_SECOND[tile]
    AT = np.empty((tile, n))
    for j in range(n):
        m, y = np.zeros((n, n)), np.zeros((1, tile, tile))
        m[0, j] = 1
        kernels.transform_output(m.reshape(n * n, 1, 1), np.zeros(1), y, 0, 1, 1)
        AT[:, j] = y[0, 0]
    return AT, G, BT


@pytest.mark.parametrize("tile", TILES)
def test_the_printed_matrices_are_the_kernels(tile):
    """Of the modules' docstrings."""
    text = TILES[tile].__doc__
    printed = []
    for name in ("A^T", "G", "B^T"):
        (rows,) = re.findall(rf"^ +{re.escape(name)} = \[(\[.*?\])\]$", text, re.M | re.S)
        printed.append([[float(Fraction(x)) for x in row.split(",")] for row in re.findall(r"\[(.*?)\]", rows)])
    for ours, theirs in zip(matrices(tile), printed, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-15)


# G[0, 0], and B^T[1, 1]: a two-dimensional transform shows its matrices only in products.
G_FIRST, B_SECOND = {2: 1, 4: 1 / 4}, {2: 1, 4: -4}


@pytest.mark.parametrize("tile", TILES)
def test_the_kernels_have_the_derived_matrices(tile):
    """Up to scales a, g, b of each point, whose product is 1."""
    exact = [np.vectorize(lambda f: Fraction(float(f)).limit_denominator(100))(M) for M in matrices(tile)]
    assert np.allclose(exact[1].astype(float), matrices(tile)[1], rtol=1e-15, atol=0)
    derived = cook_toom(tile, 3, POINTS[tile])
    for point in range(tile + 2):
        product = Fraction(1)
        for mine, theirs in zip((exact[0].T, *exact[1:]), (derived[0].T, *derived[1:]), strict=True):
            at = int(np.flatnonzero(theirs[point])[0])
            scale = mine[point, at] / theirs[point, at]
            assert mine[point].tolist() == (scale * theirs[point]).tolist()
            product *= scale
        assert product == 1


def test_amplification_is_as_the_files_say():
    """u, v and m rounded once to float32, all else in float64: what the transforms make of it."""
    x, weight, bias = single(*image(1, 64, 32, 32, 32))
    expected = naive(*(a.astype(np.float64) for a in (x, weight, bias)), 1, (1, 1, 1, 1))
    unit = 2.0**-24
    im2col = error(conv2d_im2col(x, weight, bias, 1, (1, 1, 1, 1)), expected) / unit
    two, four = (
        error(conv2d_winograd(x, transform_filters(weight, tile), bias, (1, 1, 1, 1)), expected) / unit
        for tile in (2, 4)
    )
    assert 2 < im2col < 6
    assert 2 < two < 6
    assert 20 < four < 40


def test_bytes_are_as_announced():
    weight = np.zeros((7, 5, 3, 3), np.float32)
    for tile in TILES:
        filters = transform_filters(weight, tile)
        assert filters.tile == tile
        assert filters.nbytes == bytes_of_filters(7, 5, tile, np.float32)
