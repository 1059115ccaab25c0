"""Float16 sums against the definition in NumPy's float16, number by number."""

import numpy as np
import pytest

from refsd.kernels.attention import attention
from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.products_f16 import products_f16


def factors(rng, *shape):
    return rng.standard_normal(shape).astype(np.float16).astype(np.float32)


def by_definition(a, b, step, run):
    """A product of two float16 numbers, and a sum of sixteen of about this size, is exact in float64."""
    y = np.zeros((len(a), b.shape[1]), np.float32)
    run = run or len(b)
    for m, n in np.ndindex(*y.shape):
        terms = a[m].astype(np.float64) * b[:, n]
        for first in range(0, len(b), run):
            s = np.float16(0)
            for at in range(first, min(first + run, len(b)), step):
                s = np.float16(s + terms[at : min(at + step, first + run, len(b))].sum())
            y[m, n] += np.float32(s)
    return y


@pytest.mark.parametrize(("step", "run"), [(1, 0), (16, 0), (1, 32), (4, 24), (7, 30), (16, 1)])
def test_sums_are_rounded_where_they_are_said_to_be(step, run):
    rng = np.random.default_rng(5)
    a, b = factors(rng, 5, 75), factors(rng, 75, 9)
    y, expected = products_f16(a, b, step=step, run=run), by_definition(a, b, step, run)
    # float32's own roundings within a step may turn a tie.
    assert np.mean(y == expected) > 0.95
    np.testing.assert_allclose(y, expected, atol=2.0**-8)
    exact = a.astype(np.float64) @ b
    assert run == 1 or np.abs(y - exact).max() > 2e-4


def test_stacks_of_matrices_and_a_given_result():
    rng = np.random.default_rng(6)
    a, b = factors(rng, 3, 1, 4, 20), factors(rng, 2, 20, 6)
    out = np.empty((3, 2, 4, 6), np.float32)
    assert products_f16(a, b, out, step=4) is out
    for i, j in np.ndindex(3, 2):
        np.testing.assert_array_equal(out[i, j], products_f16(a[i, 0], b[j], step=4))
    assert products_f16(np.ones((2, 0), np.float32), np.ones((0, 3), np.float32)).tolist() == [[0.0] * 3] * 2


def test_a_sum_beyond_float16_is_infinite_and_runs_keep_it_finite():
    a, b = np.full((1, 256), 32.0, np.float32), np.full((256, 1), 16.0, np.float32)
    assert np.isinf(products_f16(a, b))
    np.testing.assert_array_equal(products_f16(a, b, run=64), [[256 * 512.0]])


def test_it_stands_in_for_matmul():
    rng = np.random.default_rng(7)
    x, weight, bias = factors(rng, 2, 4, 5, 6), factors(rng, 6, 2, 3, 3), factors(rng, 6)
    how = (x, weight, bias, 1, (1, 1, 1, 1), 1, 2)
    error = np.abs(conv2d_im2col(*how, matmul=products_f16) - conv2d_im2col(*how))
    assert 1e-4 < error.max() < 0.02
    q, k, v = (factors(rng, 1, 7, 2, 8) for _ in range(3))
    error = np.abs(attention(q, k, v, 0.3, matmul=products_f16) - attention(q, k, v, 0.3))
    assert 1e-5 < error.max() < 0.01
