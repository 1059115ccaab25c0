"""Seamless pictures: what is moved around before a model is moved around behind it."""

import numpy as np
import pytest
import tiny_models as tiny
import tiny_vae

from refsd.adapters import Adapters, Applied, Merged
from refsd.circular import CircularAxes
from refsd.kernels.adapters import LoRA
from refsd.models.unet import unet
from refsd.models.vae import decode, encode
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.numerics.tensor import stored

RNG = np.random.default_rng(11)
X = RNG.standard_normal((2, 3, 4, 5))


def distance(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.parametrize(
    ("circular", "left", "rows", "columns"),
    [
        (CircularAxes(), (1, 2, 3, 1), [0, 1, 2, 3], [0, 1, 2, 3, 4]),
        (CircularAxes(x=True), (1, 2, 0, 0), [0, 1, 2, 3], [2, 3, 4, 0, 1, 2, 3, 4, 0]),
        (CircularAxes(y=True), (0, 0, 3, 1), [3, 0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 4]),
        (CircularAxes(True, True), (0, 0, 0, 0), [3, 0, 1, 2, 3, 0, 1], [2, 3, 4, 0, 1, 2, 3, 4, 0]),
        (CircularAxes(True, True, one_sided=False), (1, 2, 3, 1), [0, 1, 2, 3], [0, 1, 2, 3, 4]),
    ],
)
def test_what_stands_opposite_is_laid_around(circular, left, rows, columns):
    y, padding = circular.wrap(X, (1, 2, 3, 1))
    assert padding == left
    np.testing.assert_array_equal(y, X[:, :, rows][..., columns])


def test_equal_sides_wrap_in_torch_too():
    y, padding = CircularAxes(True, True, one_sided=False).wrap(X, (1, 1, 0, 1))
    assert padding == (0, 0, 0, 1)
    np.testing.assert_array_equal(y, X[:, :, [3, 0, 1, 2, 3, 0]])


def test_a_picture_thinner_than_the_padding_goes_around_again():
    y, _ = CircularAxes(x=True).wrap(X[..., :1], (0, 0, 2, 2))
    np.testing.assert_array_equal(y, X[..., [0] * 5])


def module(part, circular, numerics=FLOAT64):
    return Module(tiny.weights(part), Arithmetic(numerics), circular=circular)


def moved(x, rows, columns):
    return np.roll(x, (rows, columns), (2, 3))


def autoencoder(circular):
    return Module(tiny_vae.weights("flux"), circular=circular)


BOTH = CircularAxes(True, True)


@pytest.mark.parametrize(
    ("circular", "rows", "columns"), [(BOTH, 1, 2), (CircularAxes(x=True), 0, 3), (CircularAxes(y=True), 2, 0)]
)
def test_a_latent_moved_around_is_the_picture_moved_around(circular, rows, columns):
    z = tiny_vae.inputs()["z"][:1, :, :3, :4]

    def off(circular):
        m = autoencoder(circular)
        there, back = (decode(m, latent, tiny_vae.GROUPS) for latent in (moved(z, rows, columns), z))
        return distance(there, moved(back, 2 * rows, 2 * columns))

    assert off(circular) <= 1e-13
    assert off(CircularAxes()) > 1e-3


def test_the_encoder_is_seamless_only_if_one_sided_padding_wraps():
    x = tiny_vae.inputs()["x"][:1, :, :6, :8]
    for circular, holds in ((BOTH, True), (CircularAxes(True, True, one_sided=False), False)):
        m = autoencoder(circular)
        there, back = (encode(m, picture, tiny_vae.GROUPS)[0] for picture in (moved(x, 2, 4), x))
        off = distance(there, moved(back, 1, 2))
        assert (off <= 1e-13) == holds


@pytest.mark.jitted
def test_the_unet_is_seamless_in_every_profile():
    given = tiny.inputs()["unet"]
    for name, numerics in PROFILES.items():
        m = module("unet", BOTH, numerics)
        x = m.store(given["x"])
        back = unet(m, x, given["timesteps"].astype(np.float64), m.store(given["context"]))
        there = unet(m, moved(x, 2, 4), given["timesteps"].astype(np.float64), m.store(given["context"]))
        off = distance(there.astype(np.float64), moved(back.astype(np.float64), 2, 4))
        assert off <= {"float64": 1e-13, "float32": 2e-6, "torch-f32": 2e-6}.get(name, 4e-2), name


def test_an_adapter_sees_the_same_borders():
    tensors = {"c.weight": stored(RNG.standard_normal((4, 3, 3, 3))), "c.bias": stored(RNG.standard_normal(4))}
    arithmetic = Arithmetic(FLOAT64)
    lora = LoRA(RNG.standard_normal((2, 3, 3, 3)), RNG.standard_normal((4, 2)))
    adapters = Adapters({"c": [Applied(lora, 0.5)]}, arithmetic)
    ran = Module(tensors, arithmetic, adapters=adapters, circular=BOTH).conv2d("c", X, padding=1)
    merged = Module(Merged(tensors, adapters), arithmetic, circular=BOTH).conv2d("c", X, padding=1)
    assert distance(ran, merged) <= 1e-14
    assert distance(Module(tensors, arithmetic, circular=BOTH).conv2d("c", X, padding=1), merged) > 1e-2


def test_a_longer_prefix_keeps_the_seams():
    assert Module({}, circular=BOTH)["a"][3].circular == BOTH
