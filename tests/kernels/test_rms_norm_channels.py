"""RMS normalisation over channels against its naive version, alone and followed by SiLU."""

import os
import subprocess
import sys

import numpy as np
import pytest
from naive.rms_norm_channels import rms_norm_channels as naive

from refsd.kernels.activations import silu
from refsd.kernels.rms_norm_channels import rms_norm_channels, rms_norm_channels_silu

SHAPES = (1, 1, 1, 1), (2, 5, 3, 7), (2, 24, 2, 9, 11), (1, 3, 200)


def volume(shape):
    rng = np.random.default_rng(sum(shape))
    return rng.normal(0.3, 2, shape), rng.normal(1, 0.3, shape[1])


@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_naive_one(shape):
    x, weight = volume(shape)
    expected = naive(x, weight, 1e-12)
    np.testing.assert_allclose(rms_norm_channels(x, weight, 1e-12), expected, rtol=1e-14)
    single = rms_norm_channels(x.astype(np.float32), weight.astype(np.float32), 1e-12)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=8e-7, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_followed_by_silu(shape):
    x, weight = volume(shape)
    expected = silu(naive(x, weight, 1e-12))
    np.testing.assert_allclose(rms_norm_channels_silu(x, weight, 1e-12), expected, rtol=1e-14, atol=1e-15)
    single = rms_norm_channels_silu(x.astype(np.float32), weight.astype(np.float32), 1e-12)
    np.testing.assert_allclose(single, expected, rtol=2e-6, atol=1e-6)


def test_a_black_pixel_stays_black():
    x, weight = volume((1, 4, 2, 3))
    x[:, :, 1, 2] = 0
    assert (rms_norm_channels(x, weight, 1e-12)[:, :, 1, 2] == 0).all()


def test_a_dark_pixel_is_divided_by_eps():
    x, weight = volume((1, 4, 2, 3))
    y = rms_norm_channels(x * 1e-9, weight, 1e-3)
    np.testing.assert_allclose(y, x * 1e-6 * 2 * weight[:, None, None], rtol=1e-14)


FIRST = """
import numpy as np
from refsd.kernels import rms_norm_channels as page
print(page.{name}(np.ones((1, 2, 3, 5), np.float32), np.ones(2, np.float32), 1e-12).shape)
"""


@pytest.mark.jitted
@pytest.mark.parametrize("name", ["rms_norm_channels", "rms_norm_channels_silu"])
def test_it_compiles_before_any_other_kernel(name, tmp_path):
    """Numba 0.68 refuses an expression of whole arrays within prange, unless other kernels were compiled before."""
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", FIRST.format(name=name)], env=env, capture_output=True, text=True
    )
    assert done.stdout == "(1, 2, 3, 5)\n", done.stderr
