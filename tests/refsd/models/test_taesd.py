"""Each TAESD against what the original answered in float64, at its own width."""

import numpy as np
import pytest
import tiny_taesd as tiny
from tiny_models import sampled
from tiny_side_models import taesd_shapes

from refsd.models.taesd import decode, encode
from refsd.module import Module, Taps

RECORDED = np.load(tiny.RECORDED)
SHAPES = tiny.recorded_shapes()
LATENT_CHANNELS = {"taesd": 4, "taesdxl": 4, "taesd3": 16, "taef1": 16, "taef2": 32}


class Read(dict):
    """Weights that know which were read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)


def distance(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.parametrize("variant", tiny.VARIANTS)
def test_every_shape_is_the_original_s(variant):
    shapes = taesd_shapes(64, LATENT_CHANNELS[variant], pooled=variant == "taef2")
    assert {name: list(shape) for name, shape in shapes.items()} == SHAPES[variant]


@pytest.mark.jitted
@pytest.mark.parametrize("variant", ["taesd", "taef1", "taef2"])
def test_the_recorded_answers_of_the_original_from_every_weight(variant):
    weights = Read(tiny.weights(SHAPES[variant]))
    given = tiny.inputs(LATENT_CHANNELS[variant])
    m = Module(weights, taps=Taps())
    assert distance(sampled(encode(m["encoder"], given["x"])), RECORDED[f"{variant}/z"]) <= 1e-12
    assert distance(sampled(decode(m["decoder"], given["z"])), RECORDED[f"{variant}/x"]) <= 1e-12
    assert weights.read == set(weights)
    pools = {f"encoder.{i}.pool" for i in (11, 12, 13)} | {f"decoder.{i}.pool" for i in (3, 4, 5)}
    assert {at for at in m.taps if at.endswith("pool")} == (pools if variant == "taef2" else set())


def test_what_has_the_same_shapes_has_the_same_answers():
    """Five names, three architectures."""
    for one, other in (("taesd", "taesdxl"), ("taesd3", "taef1")):
        assert SHAPES[one] == SHAPES[other]
        for name in "zx":
            np.testing.assert_array_equal(RECORDED[f"{one}/{name}"], RECORDED[f"{other}/{name}"])
