"""Normals as torch has them on x86-64, to the last bit."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from refsd.samplers.noise import TorchCpu, philox4x32
from refsd.samplers.noise_avx2 import TorchAvx2, log_cephes, sin_cos_cephes

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


def test_random123_zeros():
    words = philox4x32(np.zeros((4, 1), np.uint32), (0, 0))
    assert words[:, 0].tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


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
