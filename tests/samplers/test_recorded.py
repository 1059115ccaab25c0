"""Where k-diffusion's samplers ended, and torchsde's increments: see tests/fixtures/record_samplers.py."""

import json
from pathlib import Path

import numpy as np
import pytest

from refsd.samplers import SAMPLERS
from refsd.samplers.brownian import BrownianTree
from refsd.samplers.noise import Philox, independent

RECORD = json.loads((Path(__file__).parents[1] / "fixtures" / "samplers.json").read_text())
SHAPE = (2, 1, 2, 3)


@pytest.mark.parametrize("name", RECORD["ends"])
def test_ends(name):
    sigmas = np.array(RECORD["sigmas"])
    x = Philox(42).randn(SHAPE).astype(np.float64) * sigmas[0]
    y = SAMPLERS[name](lambda x, sigma: np.tanh(x) / (1 + sigma), x, sigmas, independent(Philox(7), SHAPE))
    np.testing.assert_allclose(y.ravel(), RECORD["ends"][name], rtol=1e-11, atol=1e-13)


def test_brownian_increments():
    tree = BrownianTree(0.03, 14.6, 42, SHAPE, np.float64)
    for a, b, increment in RECORD["brownian"]:
        np.testing.assert_allclose(tree(a, b).ravel(), increment, rtol=1e-13, atol=1e-15)


def test_a_step_is_the_sum_of_its_parts():
    tree = BrownianTree(0.03, 14.6, 5, SHAPE, np.float64)
    whole = tree(1.0, 4.0)
    np.testing.assert_allclose(whole, tree(1.0, 2.5) + tree(2.5, 4.0), atol=1e-14)
    np.testing.assert_array_equal(whole, BrownianTree(0.03, 14.6, 5, SHAPE, np.float64)(1.0, 4.0))
