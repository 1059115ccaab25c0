"""stable-diffusion.cpp's own RNG and tree, compiled alone with GCC 12.2 (denoiser.hpp, rng.hpp)."""

import numpy as np
import pytest

from refsd.samplers.brownian_sdcpp import bridge_noise, libstdcxx_normals, mix, seed_of

DEFAULT_ENGINE = {
    0: [-0.259093195, 1.60159206, -1.49896121, 0.174767554, 0.119264036, -0.302023172, 0.458181173],
    42: [-0.901248038, 0.896408677, -1.20271361, -0.490155309, 0.0114701251, 0.443113595, -1.67704475],
    2**40 + 7: [-0.934290051, -0.680304527, 0.247671753, 1.7365073, 1.16656172, -0.789983392, 0.269004822],
}
SIGMAS = np.array([14.6, 5.0, 1.5, 0.03, 0.0])
STEPS = (
    [-0.149052277, -0.313581139, 0.539327383, -0.0844718963, -0.000366432389, -1.85231841],
    [0.241379902, 0.466483921, -1.00347769, 0.0981890187, -0.398613006, -0.196603671],
    [-1.10814464, 0.96604681, 0.64249754, 0.835749209, -0.430539429, -0.508695364],
)


@pytest.mark.parametrize("seed", DEFAULT_ENGINE)
def test_default_engine(seed):
    """The lower 32 bits of the seed count, and 0 is 1."""
    y = libstdcxx_normals(seed, (7,))
    expected = np.array(DEFAULT_ENGINE[seed], np.float32)
    assert (np.abs(y - expected) <= 3 * np.spacing(np.abs(expected))).all()
    np.testing.assert_array_equal(libstdcxx_normals(seed + 2**33, (7,)), y)
    np.testing.assert_array_equal(libstdcxx_normals(0, (2, 3)), libstdcxx_normals(1, (2, 3)))
    long = libstdcxx_normals(seed, (20001,))
    np.testing.assert_array_equal(long[:7], y)
    assert abs(long.mean()) < 0.04 and abs(long.std() - 1) < 0.03


def test_tree():
    noise = bridge_noise(np.zeros((2, 3)), SIGMAS, 0x1234567890ABCDEF)
    for i, expected in enumerate(STEPS):
        np.testing.assert_allclose(noise(SIGMAS[i], SIGMAS[i + 1]).ravel(), expected, atol=1e-6)


def test_the_path_does_not_depend_on_the_steps():
    whole = bridge_noise(np.zeros((2, 3)), SIGMAS, 5)
    apart = bridge_noise(np.zeros((2, 3)), np.array([14.6, 9.0, 5.0, 0.03]), 5)
    parts = apart(14.6, 9.0) * np.sqrt(5.6) + apart(9.0, 5.0) * np.sqrt(4.0)
    np.testing.assert_allclose(whole(14.6, 5.0) * np.sqrt(9.6), parts, atol=1e-5)


def test_seeds():
    """Two floats' bits, the first the lower; and splitmix64's last rounds."""
    assert seed_of(np.array([1.0, -2.0], np.float32)) == 0xC0000000_3F800000
    assert mix(0, 0) == 0 and mix(0, 0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF
