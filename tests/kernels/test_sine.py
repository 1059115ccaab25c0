"""Cosine and sine against a longer float."""

import numpy as np
from naive.sine import cos_sin

from refsd.kernels.sine import cos_sin64


def test_error_over_the_range():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-4, 4, 900), rng.uniform(-1e4, 1e4, 900), rng.uniform(-1.5e6, 1.5e6, 900)])
    near_zeros = np.arange(-200, 200) * (np.pi / 2)
    x = np.concatenate([x, near_zeros, [0.0, 1e-300]])
    y = np.array([cos_sin64(v) for v in x]).T
    assert np.abs(y - cos_sin(x)).max() <= 1.6e-16


def test_small_angles_keep_their_digits():
    x = np.geomspace(1e-300, 0.7, 300)
    y = np.array([cos_sin64(v)[1] for v in x])
    np.testing.assert_allclose(y, np.sin(x), rtol=3e-16)


def test_beyond_the_range_nothing_is_claimed():
    for x in (np.nan, np.inf, 2e6, -2e6):
        assert np.isnan(cos_sin64(x)).all()
