"""Betas, each beside its definition written another way."""

import numpy as np
import pytest

from refsd.samplers.betas import BETAS
from refsd.samplers.levels import SD_LEVELS, scaled_linear_alphas_cumprod, training_sigmas

T = 40
_START, _END = 0.001, 0.02


def _kept(betas):
    """The signal after each step, from 1 on."""
    return np.concatenate([[1.0], np.exp(np.cumsum(np.log1p(-betas)))])


def test_those_between_two_ends():
    t = np.arange(T) / (T - 1)
    np.testing.assert_allclose(BETAS["linear"](T, _START, _END), _START * (1 - t) + _END * t, rtol=1e-14)
    root = np.sqrt(_START) * (1 - t) + np.sqrt(_END) * t
    np.testing.assert_allclose(BETAS["scaled_linear"](T, _START, _END), root * root, rtol=1e-13)
    rising = (1 + np.tanh(6 * t - 3)) / 2
    np.testing.assert_allclose(BETAS["sigmoid"](T, _START, _END), _START + rising * (_END - _START), rtol=1e-13)


def test_those_of_a_curve():
    t = np.arange(T + 1) / T
    angle = np.pi * (t + 0.008) / 1.008
    a = 1 + 1e-6 - np.abs(1 - 2 * t)
    squared = np.where(t <= 0.5, 1 / (1 + np.sqrt(a)), np.sqrt(a) / (1 + np.sqrt(a)))
    curves = {"squaredcos_cap_v2": (1 + np.cos(angle)) / 2, "exp": np.exp(-12 * t), "laplace": np.sqrt(squared)}
    for name, curve in curves.items():
        betas = BETAS[name](T, _START, _END)
        free = betas < 0.999
        np.testing.assert_allclose(_kept(betas)[:-1][free[:]], (curve / curve[0])[:-1][free], rtol=1e-12)
        assert (betas > 0).all() and betas.max() <= 0.999
    assert BETAS["squaredcos_cap_v2"](T, 0, 0)[-1] == 0.999


@pytest.mark.parametrize("name", BETAS)
def test_sigmas_rise(name):
    betas = BETAS[name](1000, 0.0001, 0.02)
    sigmas = training_sigmas(np.cumprod(1 - betas))
    assert betas.shape == (1000,) and (np.diff(sigmas) > 0).all()


def test_stable_diffusions_are_scaled_linear():
    kept = np.cumprod(1 - BETAS["scaled_linear"](1000, 0.00085, 0.012))
    np.testing.assert_array_equal(kept, scaled_linear_alphas_cumprod())
    np.testing.assert_array_equal(training_sigmas(kept), SD_LEVELS.sigmas)
