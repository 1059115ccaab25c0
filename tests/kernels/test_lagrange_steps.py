"""Tables of integrals: row by row against antiderivatives and an adaptive rule."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import lagrange_steps as naive

from refsd.kernels.lagrange_steps import exponential_lagrange_steps, lagrange_steps, log_lagrange_steps

SIGMAS = np.array([14.6, 9.1, 5.2, 2.9, 1.4, 0.3])


@given(order=st.integers(1, 5), ahead=st.integers(0, 1), data=st.data())
def test_against_antiderivatives(order, ahead, data):
    steps = len(SIGMAS) - 1
    used = np.array([data.draw(st.integers(0, min(order, i + 1 + ahead))) for i in range(steps)])
    c = lagrange_steps(SIGMAS, ahead, used, order, *np.polynomial.legendre.leggauss(3))
    np.testing.assert_allclose(c, naive.lagrange_steps(SIGMAS, ahead, used, order), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("ahead", [0, 1])
def test_in_logarithms_and_under_an_exponential(ahead):
    used, rates = np.array([1, 2, 3, 0, 2]), np.array([1.0, 2.0, 1.5, 1.0, 1.2])
    c = log_lagrange_steps(SIGMAS, ahead, used, 4, *np.polynomial.legendre.leggauss(16))
    np.testing.assert_allclose(c, naive.log_lagrange_steps(SIGMAS, ahead, used, 4), rtol=1e-10)
    times = -np.log(SIGMAS)
    c = exponential_lagrange_steps(times, ahead, used, 3, rates, *np.polynomial.legendre.leggauss(32))
    np.testing.assert_allclose(c, naive.exponential_lagrange_steps(times, ahead, used, 3, rates), rtol=1e-10)


def test_a_value_that_no_step_uses_may_be_0():
    """The sigma that a schedule ends at."""
    nodes = np.array([2.0, 1.0, 0.0])
    c = log_lagrange_steps(nodes, 0, np.array([1, 0]), 2, *np.polynomial.legendre.leggauss(16))
    np.testing.assert_allclose(c, [[-1.0, 0.0], [0.0, 0.0]], rtol=1e-14)


def test_no_steps():
    assert lagrange_steps(SIGMAS[:1], 0, np.arange(0), 4, *np.polynomial.legendre.leggauss(2)).shape == (0, 4)
