"""Where churn draws, and what it makes of it."""

import math

import numpy as np
import pytest

from refsd.samplers import SAMPLERS
from refsd.samplers.churn import NO_CHURN, Churn, churned
from refsd.samplers.noise import Philox

SIGMAS = np.array([9.0, 4.0, 2.0, 1.0, 0.3, 0.0])
CHURN = Churn(s_churn=1.5, s_tmin=1.0, s_tmax=4.0, s_noise=1.1)
X = np.linspace(-30.0, 40.0, 6)
DRAWN = [Philox(step).randn(X.shape).astype(np.float64) for step in range(len(SIGMAS))]


def denoised(x, sigma):
    return np.tanh(x + 0.3) / (1 + sigma)


def run(name: str, churn: Churn):
    """-> the end, and for which sigma to which sigma_hat noise was drawn"""
    asked = []

    def noise(sigma, sigma_hat):
        asked.append((sigma, sigma_hat))
        return DRAWN[SIGMAS.tolist().index(sigma)]

    return SAMPLERS[name](denoised, X, SIGMAS, noise, churn=churn), asked


@pytest.mark.parametrize("name", ["euler", "heun", "dpm2", "heunpp2"])
def test_where_noise_is_drawn(name):
    """At every step, or only between s_tmin and s_tmax, both of them within; its use is the same."""
    everywhere, all_of_it = run(name, CHURN)
    sparing, some = run(name, CHURN._replace(every_step=False))
    raised = 1 + 1.5 / 5
    assert some == [(4.0, 4.0 * raised), (2.0, 2.0 * raised), (1.0, 1.0 * raised)]
    assert all_of_it == [(9.0, 9.0), *some, (0.3, 0.3)]
    np.testing.assert_array_equal(everywhere, sparing)
    still, none = run(name, NO_CHURN)
    assert none == [] and not np.allclose(still, sparing)


def test_by_hand():
    x, sigma_hat = churned(X, 2.0, 5, lambda *_: DRAWN[0], CHURN)
    assert sigma_hat == 2.0 * 1.3
    np.testing.assert_allclose(x, X + 1.1 * math.sqrt(2.6**2 - 4) * DRAWN[0], rtol=1e-15)
    _, most = churned(X, 2.0, 2, lambda *_: DRAWN[0], CHURN)
    assert most == pytest.approx(2 * math.sqrt(2), rel=1e-15)
