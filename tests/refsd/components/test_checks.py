"""What a component refuses, and a ControlNet beside a UNet."""

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file

from refsd.components import forward, load
from refsd.components.checks import check
from refsd.models.controlnet import controlnet
from refsd.models.unet import unet
from refsd.models.zimage import component as zimage
from refsd.module import Module
from refsd.networks.component import MASK, VALUE, Argument, Component
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64
from refsd.weights import open_checkpoint

NET = Component(
    None,
    lambda m, **given: given["x"],
    {
        "x": Argument("N C H W", VALUE, "a latent"),
        "hint": Argument("N 3 8H 8W", VALUE, "a picture", optional=True),
        "mask": Argument("N J", MASK, "which tokens count", optional=True),
    },
    {"out": "N C H W"},
    {},
    lambda m: {},
)
GIVEN = {"x": np.zeros((2, 4, 2, 3)), "hint": np.zeros((2, 3, 16, 24)), "mask": np.array([[1, 0], [1, 1]])}


def told(**changed):
    check("net", NET, Module({}), {**GIVEN, **changed}, {}, "inputs")


def test_what_fits_is_taken():
    told()
    told(mask=GIVEN["mask"] == 1)
    told(mask=GIVEN["mask"].astype(np.float32))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"hint": np.zeros((2, 3, 16, 16))}, "8W is 16 here and 24 in another tensor"),
        ({"hint": np.zeros((2, 4, 16, 24))}, "3 is 4 here and must be 3"),
        ({"mask": np.array([[1, 2], [1, 1]])}, "tensor mask holds 1..2, expected 0 and 1 only"),
        ({"mask": np.array([[0.5, 1.0], [1, 1]])}, "expected 0 and 1 only"),
        ({"x": np.ones((2, 4, 2, 3), bool)}, "tensor x is bool, expected float: only a mask may be bool"),
    ],
)
def test_what_does_not_fit_is_named(changed, says):
    with pytest.raises(BadInput, match=says):
        told(**changed)


@pytest.mark.parametrize("value", [0.0, -1e-6])
def test_numbers_that_no_norm_or_angle_can_take_are_refused(value):
    net = NET._replace(params={"eps": 1e-6, "strength": 1.0})
    check("net", net, Module({}), GIVEN, {"strength": value}, "inputs")
    with pytest.raises(BadInput, match=f"net: param eps is {value}, expected a number above 0"):
        check("net", net, Module({}), GIVEN, {"eps": value}, "inputs")


@pytest.mark.parametrize("mask", [[[1, 0, 1], [1, 1, 1]], [[0, 1, 1], [1, 1, 1]]])
def test_z_image_s_captions_stand_first(mask):
    with pytest.raises(BadInput, match="ones, then zeros"):
        zimage.COMPONENTS["zimage"].run(Module({}), None, None, None, np.array(mask))


def test_a_hint_goes_through_the_controlnet_beside_the_unet(tmp_path):
    flags = {"--diffusion-model": saved(tmp_path, "sd15", "unet"), "--control-net": saved(tmp_path, "controlnet")}
    checkpoint = open_checkpoint(None, flags)
    m, params = load(checkpoint, "unet", Arithmetic(FLOAT64))
    rng = np.random.default_rng(0)
    shapes = {"x": (2, 4, 2, 4), "context": (2, 3, 24), "hint": (2, 3, 16, 32)}
    given = {name: rng.standard_normal(shape) for name, shape in shapes.items()} | {
        "timesteps": np.array([3.0, 700.0])
    }

    own = Module(checkpoint.components["unet"].weights)
    beside = Module(checkpoint.components["controlnet"].weights)
    x, t, context, hint = (given[name] for name in ("x", "timesteps", "context", "hint"))
    want = unet(own, x, t, context, **params, control=controlnet(beside, x, hint, t, context, **params))
    np.testing.assert_array_equal(forward("unet", m, given, params)["out"], want)
    without = forward("unet", m, {name: array for name, array in given.items() if name != "hint"}, params)["out"]
    assert np.abs(without - want).max() > 1e-3


def test_a_denoiser_takes_the_place_of_another_kind_of_denoiser(tmp_path):
    flux = saved(tmp_path, "flux-dev", "flux")
    checkpoint = open_checkpoint(saved(tmp_path, "sd15", "unet"), {"--diffusion-model": flux})
    assert list(checkpoint.components) == ["flux"]


def saved(folder, family, component=None):
    """A small model's file."""
    component = component or family
    path = folder / f"{family}.safetensors"
    save_file(small.weights(component, small.FAMILIES[family][component], len(family)), path)
    return path
