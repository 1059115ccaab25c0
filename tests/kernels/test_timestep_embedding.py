"""The sinusoidal embedding against complex rotations."""

import numpy as np
import pytest
from naive.timestep_embedding import timestep_embedding as naive

from refsd.kernels.timestep_embedding import timestep_embedding, timestep_embedding_sin_first


@pytest.mark.parametrize("dim", [2, 33, 320])
@pytest.mark.parametrize("max_period", [10000.0, 100.0])
def test_values(dim, max_period):
    t = np.array([0.0, 1.0, 500.5, 999.0])
    y = timestep_embedding(t, dim, max_period)
    np.testing.assert_allclose(y, naive(t, dim, max_period), atol=1e-12)
    np.testing.assert_array_equal(y[0, : dim // 2], 1.0)


def test_float32_errs_with_the_angle():
    t = np.array([999.0])
    y = timestep_embedding(t.astype(np.float32), 320)
    assert y.dtype == np.float32
    assert np.abs(y - naive(t, 320, 10000.0)).max() <= 1e-3


@pytest.mark.parametrize(("freq_shift", "scale"), [(1.0, 1.0), (0.0, 1000.0), (1.0, 0.5)])
def test_variants(freq_shift, scale):
    t = np.array([0.0, 0.25, 1.0])
    expected = naive(t, 33, 10000.0, freq_shift, scale)
    y = timestep_embedding(t, 33, freq_shift=freq_shift, scale=scale)
    np.testing.assert_allclose(y, expected, atol=1e-12)
    y = timestep_embedding_sin_first(t, 33, freq_shift=freq_shift, scale=scale)
    np.testing.assert_allclose(y, np.hstack([expected[:, 16:32], expected[:, :16], expected[:, 32:]]), atol=1e-12)
