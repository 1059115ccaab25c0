"""Integrals of Lagrange's polynomials against antiderivatives and an adaptive rule."""

import numpy as np
import pytest
from naive import lagrange as naive

from refsd.kernels.lagrange import exponential_lagrange_integrals, lagrange_integrals, log_lagrange_integrals

SIGMAS = np.array([14.6, 9.1, 5.2, 2.9, 1.4, 0.3])


@pytest.mark.parametrize("n", range(1, 6))
def test_against_antiderivatives(n):
    nodes = SIGMAS[:n][::-1]
    c = lagrange_integrals(nodes, SIGMAS[n - 1], SIGMAS[n], *np.polynomial.legendre.leggauss((n + 1) // 2))
    np.testing.assert_allclose(c, naive.lagrange_integrals(nodes, SIGMAS[n - 1], SIGMAS[n]), rtol=1e-11)
    assert abs(c.sum() - (SIGMAS[n] - SIGMAS[n - 1])) < 1e-12


@pytest.mark.parametrize("n", range(1, 5))
def test_in_logarithms_against_an_adaptive_rule(n):
    nodes = SIGMAS[:n][::-1]
    c = log_lagrange_integrals(nodes, SIGMAS[n - 1], SIGMAS[n], *np.polynomial.legendre.leggauss(16))
    np.testing.assert_allclose(c, naive.log_lagrange_integrals(nodes, SIGMAS[n - 1], SIGMAS[n]), rtol=1e-11)


def test_a_step_over_four_decades():
    nodes = np.array([14.6, 20.0, 30.0])
    c = log_lagrange_integrals(nodes, 14.6, 0.00146, *np.polynomial.legendre.leggauss(16))
    np.testing.assert_allclose(c, naive.log_lagrange_integrals(nodes, 14.6, 0.00146), rtol=1e-10)


@pytest.mark.parametrize("n", range(1, 5))
def test_under_an_exponential_against_an_adaptive_rule(n):
    nodes = -np.log(SIGMAS[:n][::-1])
    start, end = -np.log(SIGMAS[n - 1 : n + 1])
    c = exponential_lagrange_integrals(nodes, start, end, 2.0, *np.polynomial.legendre.leggauss(32))
    np.testing.assert_allclose(c, naive.exponential_lagrange_integrals(nodes, start, end, 2.0), rtol=1e-10)
    assert abs(c.sum() + np.expm1(-2.0 * (end - start))) < 1e-12
