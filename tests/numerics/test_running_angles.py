import numpy as np
import pytest

from refsd.kernels.rope import rope_angles
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.running_angles import rope_angles_running


def test_each_angle_is_the_one_before_times_a_factor():
    ids = np.array([[[3, 70], [511, 0]]])
    angle = rope_angles_running(ids, (8, 4), 1e6)
    assert angle.shape == (1, 2, 6) and angle.dtype == np.float64
    np.testing.assert_array_equal(angle, angle.astype(np.float32))
    np.testing.assert_array_equal(angle[..., [0, 4]], ids)
    np.testing.assert_allclose(angle, rope_angles(ids, (8, 4), 1e6), rtol=1e-6)
    factor = np.float32(1e6) ** np.float32(-0.25)
    for i in range(1, 4):
        np.testing.assert_array_equal(angle[..., i], angle[..., i - 1].astype(np.float32) * factor)


@pytest.mark.parametrize(("theta", "off"), [(1e6, 5e-5), (1e9, 2.7e-5)])
def test_they_err_with_the_position(theta, off):
    """Qwen3's and Mistral's, at 512 tokens."""
    ids = np.arange(512)[None, :, None]
    error = np.abs(rope_angles_running(ids, (128,), theta) - rope_angles(ids, (128,), theta)).max()
    np.testing.assert_allclose(error, off, rtol=0.02)


def test_it_is_a_deviation():
    deviating = Arithmetic(FLOAT64, [DEVIATIONS["sdcpp/rope-running-angles"]])
    ids = np.arange(9)[None, :, None]
    np.testing.assert_array_equal(deviating.rope_angles(ids, (8,), 1e6), rope_angles_running(ids, (8,), 1e6))
