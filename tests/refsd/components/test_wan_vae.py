"""The components of Wan's autoencoder: what they take, and what they refuse in one line."""

import numpy as np
import pytest
import tiny_wan_vae as tiny

from refsd.components import check, forward
from refsd.models.vae_wan import decode
from refsd.module import Module
from refsd.numerics.errors import BadInput

M = Module(tiny.weights())
STATISTICS = {"latents_mean": tiny.MEAN, "latents_std": tiny.STD}
GIVEN = {"wan-vae-encoder": ("x", (1, 3, 1, 8, 9)), "wan-vae-decoder": ("z", (1, 3, 2, 1, 2))}


@pytest.mark.parametrize("name", GIVEN)
def test_what_fits_is_taken(name):
    argument, shape = GIVEN[name]
    check(name, M, {argument: np.zeros(shape)}, STATISTICS)


@pytest.mark.parametrize(
    ("name", "shape", "match"),
    [
        ("wan-vae-encoder", (1, 3, 8, 9), r"expected \[N, C, F, H, W\]"),
        ("wan-vae-encoder", (1, 4, 1, 8, 9), "C is 4, the model takes 3"),
        ("wan-vae-encoder", (1, 3, 1, 8, 7), "W is 7, the model takes at least 8"),
        ("wan-vae-decoder", (1, 4, 1, 8, 9), "Z is 4, the model takes 3"),
    ],
)
def test_what_does_not_fit_is_refused(name, shape, match):
    with pytest.raises(BadInput, match=match):
        check(name, M, {GIVEN[name][0]: np.zeros(shape)}, STATISTICS)


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"latents_mean": [0.0] * 16}, "param latents_mean is .* the model takes a list of 3 numbers, each finite"),
        ({"latents_mean": 0.5}, "a list of 3 numbers"),
        ({"latents_std": [1.0, 0.0, 1.0]}, "a list of 3 numbers, each above 0"),
        ({"latents_std": [1.0, float("nan"), 1.0]}, "above 0"),
    ],
)
def test_wrong_statistics_are_refused(changed, match):
    name, (argument, shape) = "wan-vae-decoder", GIVEN["wan-vae-decoder"]
    with pytest.raises(BadInput, match=match):
        check(name, M, {argument: np.zeros(shape)}, {**STATISTICS, **changed})


def test_it_runs_what_the_page_runs():
    z = tiny.inputs(5)["z"]
    got = forward("wan-vae-decoder", M, {"z": z}, STATISTICS)["out"]
    np.testing.assert_array_equal(got, decode(M, z, **STATISTICS))
