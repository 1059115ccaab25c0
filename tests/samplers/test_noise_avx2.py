"""Normals as torch has them on x86-64, to the last bit, and its Brownian motions: fixtures/record_rng_torch.py."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from refsd.kernels.philox import philox4x32_10
from refsd.samplers.brownian import BrownianTree
from refsd.samplers.noise import RNGS, TorchAvx2, TorchCpu, TorchScalar
from refsd.samplers.noise_avx2 import log_cephes, sin_cos_cephes

FIXTURE = json.loads((Path(__file__).parent.parent / "fixtures" / "rng_torch.json").read_text())
DTYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("case", [pytest.param(c, id=f"{c['dtype']}-{c['seed']}") for c in FIXTURE["torch"]])
def test_every_size_class_of_torch(case):
    """Calls of fewer than 16, of whole blocks and of torn ones, one after another, the kept normal between them."""
    dtype = np.dtype(DTYPES[case["dtype"]])
    rng = TorchAvx2(case["seed"])
    y = np.concatenate([rng.randn((n,), dtype) for n in case["calls"]])
    expected = np.frombuffer(bytes.fromhex(case["hex"]), dtype)
    assert y.dtype == dtype
    if dtype == np.float64:
        np.testing.assert_array_max_ulp(y, expected, 2)
    else:
        np.testing.assert_array_equal(y.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("case", [pytest.param(c, id=str(c["seed"])) for c in FIXTURE["scalar"]])
def test_torch_without_avx2(case):
    """Its angles are products of float64: TorchCpu's are of float32, and other sines near pi."""
    rng = TorchScalar(case["seed"])
    y = np.concatenate([rng.randn((n,)) for n in case["calls"]])
    np.testing.assert_array_max_ulp(y, np.frombuffer(bytes.fromhex(case["hex"]), np.float32), 3)


def test_an_angle_of_float32_is_another_sine_near_pi():
    """Where theta is next to pi its last bit decides on the sine: by some parts in a thousand at 32 steps of it."""
    u = np.float32(0.5) + np.arange(-32, 32, dtype=np.float32) * np.float32(2.0**-24)
    d = np.concatenate([np.full((8, 8), 0.5, np.float32), u.reshape(8, 8)], axis=1).reshape(-1)
    sines, others = (rng(0)._box_muller(d).reshape(8, 2, 8)[:, 1].reshape(-1) for rng in (TorchScalar, TorchCpu))
    theta = (2 * np.pi * u.astype(np.float64)).astype(np.float32)
    expected = np.sqrt(2 * np.log(2)) * np.sin(theta.astype(np.float64))
    np.testing.assert_allclose(sines, expected, rtol=3e-7)
    assert np.abs(others / expected - 1).max() > 1e-3


def test_a_brownian_motion_of_float32_is_torchsdes_to_the_bit():
    tree = BrownianTree(0.03, 14.6, 42, (2, 4, 3, 5))
    for a, b, theirs in FIXTURE["brownian"]:
        expected = np.frombuffer(bytes.fromhex(theirs), np.float32).reshape(2, 4, 3, 5)
        np.testing.assert_array_equal(tree(a, b), expected)


def test_the_default_stream_is_torchs_own():
    """What a user calls `cpu` is torch's on today's CPUs; stable-diffusion.cpp's and the scalar path have names."""
    assert (RNGS["cpu"], RNGS["cpu_sdcpp"], RNGS["cpu_scalar"]) == (TorchAvx2, TorchCpu, TorchScalar)


def test_random123_zeros():
    words = philox4x32_10(np.zeros((1, 4), np.uint32), np.uint64(0))
    assert words[0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_polynomials_are_near_the_functions():
    d = (np.arange(0, 1 << 24, 4099) * 2.0**-24).astype(np.float32)
    log, true = log_cephes(1 - d), np.log(1 - d.astype(np.float64))
    assert np.all(np.abs(log - true) <= np.spacing(np.abs(log)))
    angle = np.float32(2 * np.pi) * d
    for y, f in zip(sin_cos_cephes(angle), (np.sin, np.cos), strict=True):
        np.testing.assert_allclose(y, f(angle.astype(np.float64)), rtol=0, atol=9e-8)


def test_shapes_and_the_distance_of_the_other():
    y, other = TorchAvx2(5).randn((2, 4, 9, 7)), TorchCpu(5).randn((2, 4, 9, 7))
    np.testing.assert_array_equal(y.reshape(-1), TorchAvx2(5).randn((504,)))
    assert not np.array_equal(y, other)
    np.testing.assert_array_max_ulp(y, other, 3)
