"""Chroma-Radiance against what the original answered in float64, block by block."""

import numpy as np
import pytest
import tiny_radiance as tiny
from tiny_models import sampled

from refsd.models import chroma_radiance as page
from refsd.models.chroma import seen
from refsd.models.chroma_radiance import chroma_radiance, cosines, patches, picture
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.numerics.tensor import stored

RECORDED = np.load(tiny.RECORDED)
SHAPES = tiny.recorded_shapes()
MARKERS = {"__x0__", "__32x32__"}


class Read(dict):
    """Weights that know which were read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)


def run(name, m, item=slice(None), numerics=FLOAT64):
    a = {key: value[item] for key, value in tiny.inputs(name).items()}
    m.arithmetic = Arithmetic(numerics)
    mask = seen(a["attention_mask"]) if tiny.SIZES[name].seen else None
    return chroma_radiance(m, m.store(a["x"]), a["timesteps"], m.store(a["context"]), mask, tiny.SIZES[name].axes)


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


ALL = [pytest.param(name, marks=[pytest.mark.jitted] * (name == "real")) for name in tiny.SIZES]


@pytest.mark.parametrize("name", ALL)
def test_the_recorded_answers_of_the_original_from_every_weight(name):
    weights = Read(tiny.weights(SHAPES[name]))
    m = Module(weights, taps=Taps())
    v = run(name, m)
    assert v.shape == tiny.inputs(name)["x"].shape
    assert distance(sampled(v), RECORDED[f"{name}/v"]) <= 1e-12
    assert weights.read == set(weights) - MARKERS
    blocks = [at for at in RECORDED.files if at.startswith(f"{name}/") and at != f"{name}/v"]
    assert len(blocks) == sum(tiny.SIZES[name].depths) + 1
    for at in blocks:
        ours = at.split("/")[1]
        tap = m.taps[f"{ours}.0" if ours.startswith("double_blocks") else ours]
        assert distance(sampled(tap), RECORDED[at]) <= 1e-12, at


def test_the_shapes_are_those_of_the_released_fields():
    real = SHAPES["real"]
    assert real["nerf_image_embedder.embedder.0.weight"] == [64, 3 + 8 * 8]
    assert real["nerf_blocks.1.param_generator.weight"][0] == 3 * 64 * 64 * 4
    assert real["img_in_patch.weight"][1:] == [3, 16, 16]
    assert {name for name in SHAPES["x0-twice"] if name.startswith("__")} == MARKERS


def test_what_the_markers_say():
    weights = tiny.weights(SHAPES["x0-twice"])
    a = tiny.inputs("x0-twice")
    v = run("x0-twice", Module(weights))
    plain = {name: w for name, w in weights.items() if name != "__x0__"}
    x0 = run("x0-twice", Module(plain))
    np.testing.assert_allclose(a["x"] - a["timesteps"][:, None, None, None] * v, x0, rtol=1e-9, atol=1e-12)
    del plain["__32x32__"]
    assert distance(run("x0-twice", Module(plain)), x0) > 0.01


def test_a_few_patches_at_a_time_are_the_same(monkeypatch):
    want = run("masked", Module(tiny.weights(SHAPES["masked"])))
    monkeypatch.setattr(page, "AT_ONCE", 3)
    assert distance(run("masked", Module(tiny.weights(SHAPES["masked"]))), want) <= 1e-14


def test_the_items_of_a_batch_do_not_meet():
    m = Module(tiny.weights(SHAPES["masked"]))
    both = run("masked", m)
    for i in range(2):
        assert distance(run("masked", m, slice(i, i + 1))[0], both[i]) <= 1e-13


def made_of(bias):
    """A block whose matrices are all of one number, at hidden = 0."""
    weights = {"param_generator.weight": np.zeros((3 * 2 * 4, 1)), "param_generator.bias": np.full(3 * 2 * 4, bias)}
    m = Module({name: stored(w) for name, w in (weights | {"norm.scale": np.ones(2)}).items()})
    return page.field_block(m, np.array([[[1.0, 2.0]]]), np.zeros((1, 1)))


def test_columns_have_length_one_unless_they_are_almost_zero():
    np.testing.assert_allclose(made_of(1e-9), made_of(1.0), rtol=1e-14)
    assert distance(made_of(1e-14), made_of(1.0)) > 0.1
    np.testing.assert_array_equal(made_of(0.0), [[[1, 2]]])


# What a profile may be away from the truth: a few times what it measures here.
AWAY = {"float32": 2e-4, "torch-f16": 3e-3, "torch-bf16": 3e-2, "ggml-cpu": 6e-4}


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
def test_every_profile_runs_near_the_truth(profile):
    v = run("masked", Module(tiny.weights(SHAPES["masked"])), numerics=PROFILES[profile])
    assert v.dtype == PROFILES[profile].storage_dtype
    assert 0 < distance(sampled(v), RECORDED["masked/v"]) <= AWAY[profile]


def test_patches_there_and_back():
    x = np.arange(2 * 3 * 6 * 4.0).reshape(2, 3, 6, 4)
    items = patches(x, 2)
    np.testing.assert_array_equal(items[7, 1], x[1, :, 0, 3])
    np.testing.assert_array_equal(picture(items, 6, 4), x)


def test_the_waves_of_a_patch():
    """Those of the discrete cosine transform of the first kind."""
    waves = cosines(3, 2)
    np.testing.assert_allclose(waves[0], [1, 1, 1, 0.5])
    np.testing.assert_allclose(waves[1], [1, 1, 0, 0], atol=1e-15)  # one pixel to the right: the wave across is 0
    np.testing.assert_allclose(waves[2 * 3], [1, -1, 1, -0.5])


def zeros(name):
    return Module({key: stored(np.zeros(shape, np.float32)) for key, shape in SHAPES[name].items()})


def test_what_cannot_be_run():
    a = tiny.inputs("x0-twice")
    t, context, axes = a["timesteps"], a["context"], (2, 4, 2)
    with pytest.raises(BadInput, match="x is 18 x 3 pixels, these weights take multiples of 6: pad it"):
        chroma_radiance(zeros("x0-twice"), a["x"][..., :3], t, context, None, axes)
    with pytest.raises(BadInput, match="timesteps hold a 0"):
        chroma_radiance(zeros("x0-twice"), a["x"], 0 * t, context, None, axes)
