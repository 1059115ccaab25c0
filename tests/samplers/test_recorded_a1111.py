"""What A1111's own generator, noise, schedules and truncation gave: see tests/fixtures/record_a1111.py."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from refsd.conventions import CARDS
from refsd.conventions.sampling import from_the_end_whole
from refsd.samplers.levels import SD_LEVELS
from refsd.samplers.noise import Philox, PhiloxNv, TorchAvx2
from refsd.samplers.webui_noise import first_noise

RECORD = json.loads((Path(__file__).parents[1] / "fixtures" / "a1111.json").read_text())
SOURCES = {"NV": PhiloxNv, "CPU": TorchAvx2}
SHAPE = tuple(RECORD["image_rng"]["shape"])


def sha256(y):
    return hashlib.sha256(np.ascontiguousarray(y)).hexdigest()


def floats(text, shape):
    return np.frombuffer(bytes.fromhex(text), np.float32).reshape(shape)


@pytest.mark.parametrize("seed", RECORD["philox"]["drawn"])
def test_philox_to_the_bit(seed):
    """Two calls, and one of 16384 normals."""
    rng = PhiloxNv(int(seed))
    for shape, drawn in zip(((3, 4), (5,)), RECORD["philox"]["drawn"][seed], strict=True):
        np.testing.assert_array_equal(rng.randn(shape), floats(drawn, shape))
    assert sha256(PhiloxNv(int(seed)).randn((4, 64, 64))) == RECORD["philox"]["sha256"][seed]


def test_the_float32_normals_are_others():
    """stable-diffusion.cpp's: 1.7e-7 RMS away, farther where u is next to 1."""
    apart = Philox(42).randn((4, 64, 64)).astype(np.float64) - PhiloxNv(42).randn((4, 64, 64))
    assert 1e-7 < np.sqrt(np.mean(apart**2)) < 3e-7


@pytest.mark.parametrize("name", RECORD["image_rng"]["noises"])
def test_image_rng(name):
    """The first noise of each picture, to the bit but for the float32 of slerp."""
    source, asked = name.split(" ", 1)
    told, rng = RECORD["image_rng"]["asked"][asked], SOURCES[source]
    first, *_ = RECORD["image_rng"]["noises"][name]
    height = told.get("seed_resize_from_h")
    mine = np.stack(
        [
            first_noise(
                seed,
                SHAPE,
                # A1111 takes 0 for a picture without a subseed.
                (told["subseeds"] + [0] * 9)[b] if "subseeds" in told else None,
                told.get("subseed_strength", 0.0),
                (height, told["seed_resize_from_w"]) if height else None,
                rng,
            )
            for b, seed in enumerate(told["seeds"])
        ]
    )
    expected = floats(first, mine.shape)
    if "subseeds" in told:
        np.testing.assert_allclose(mine, expected, rtol=2e-6, atol=2e-6)
    else:
        np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("name", RECORD["schedules"])
def test_schedules(name):
    scheduler, n = name.split()
    mine = CARDS["a1111"].sigmas(int(n), scheduler, "euler", SD_LEVELS)
    np.testing.assert_allclose(mine, RECORD["schedules"][name], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("steps", "strength", "whole", "of", "last"), RECORD["truncated"])
def test_truncation(steps, strength, whole, of, last):
    """Of a schedule of `of` steps the last `last` + 1 are run."""
    ramp = lambda n: np.arange(n, -1.0, -1)
    truncation = from_the_end_whole if whole else CARDS["a1111"].truncation
    np.testing.assert_array_equal(truncation(steps, strength, ramp), ramp(of)[of - last - 1 :])
