"""Z-Image's transformer against an answer recorded from diffusers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_models as tiny
import tiny_zimage as model

from refsd.models.zimage import zimage
from refsd.models.zimage.network import zimage_keymap
from refsd.models.zimage_controlnet import Control
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.numerics.tensor import stored

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "zimage.npz")
WEIGHTS = model.weights()
INPUTS = model.inputs()


def run(weights=WEIGHTS, numerics=FLOAT64, taps=None, **changed):
    m = Module(weights, Arithmetic(numerics), taps=taps)
    given = {**INPUTS, **changed}
    given |= {name: m.store(given[name]) for name in ("x", "context")}
    return zimage(m, **given, axes_dim=model.AXES)


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


class Read(dict):
    """Weights that know which were read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)


def test_the_recorded_answer_of_diffusers():
    weights, taps = Read(WEIGHTS), Taps()
    y = run(weights, taps=taps)
    assert y.shape == INPUTS["x"].shape
    assert distance(tiny.sampled(y), RECORDED["out"]) <= 1e-12
    for name in ("noise_refiner.0", "context_refiner.0", "layers.0"):
        assert distance(tiny.sampled(taps[name][1]), RECORDED[name]) <= 1e-12
    assert weights.read == set(WEIGHTS)


@pytest.mark.parametrize("version", model.CONTROLS)
def test_the_recorded_answers_of_its_controlnets(version):
    weights = Read(model.control_weights(version))
    y = run(control=Control(Module(weights), model.hint(version), 0.7))
    assert distance(tiny.sampled(y), RECORDED[f"control {version}"]) <= 1e-12
    assert weights.read == set(weights)


def test_a_hint_that_never_was_trained_on_its_refiners():
    """2.0's file holds refiners whose before_proj is 0: the control blocks refine in their place."""
    weights, hint = model.control_weights("2.1"), model.hint("2.1")
    before = "control_noise_refiner.0.before_proj.weight"
    untrained = {**weights, before: stored(np.zeros(weights[before].shape, np.float32))}
    without = {name: w for name, w in weights.items() if not name.startswith("control_noise_refiner.")}
    y = run(control=Control(Module(untrained), hint))
    np.testing.assert_array_equal(y, run(control=Control(Module(without), hint)))
    assert distance(y, run(control=Control(Module(weights), hint))) > 1e-3


@pytest.mark.jitted
def test_what_stands_behind_a_caption_is_not_read():
    poisoned = INPUTS["context"].copy()
    poisoned[0, model.LENGTHS[0] :] = np.nan
    np.testing.assert_array_equal(run(context=poisoned), run())


@pytest.mark.jitted
def test_the_items_of_a_batch_do_not_meet():
    both = run()
    for i in range(2):
        alone = run(**{name: x[i : i + 1] for name, x in INPUTS.items()})
        assert distance(alone[0], both[i]) <= 1e-13


# What a profile may be away from the truth: a few times what it measures here.
AWAY = {"float32": 2e-6, "torch-f16": 4e-3, "torch-bf16": 4e-2, "ggml-cpu": 4e-3, "ggml-cpu-flash": 6e-3}


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
def test_every_profile_runs_near_the_truth(profile):
    y = run(numerics=PROFILES[profile])
    assert y.dtype == PROFILES[profile].storage_dtype
    away = distance(tiny.sampled(y), RECORDED["out"])
    assert 0 < away <= AWAY[profile]


def test_a_pad_token_may_lack_its_axis_of_one():
    """As GGUF files have it, which keep no leading axis of one."""
    flat = {
        name: w._replace(shape=w.shape[1:], data=w.data[0]) if name.endswith("pad_token") else w
        for name, w in WEIGHTS.items()
    }
    assert distance(tiny.sampled(run(flat)), RECORDED["out"]) <= 1e-12


@pytest.mark.parametrize(
    "changed",
    [
        {"lengths": np.array([0, 3])},
        {"lengths": np.array([3, 38])},
        {"lengths": np.array([3])},
        {"x": INPUTS["x"][:, :, :5]},
        {"x": INPUTS["x"][..., :7]},
    ],
    ids=["no token", "too long", "one length", "odd height", "odd width"],
)
def test_what_does_not_fit_is_told_in_one_line(changed):
    with pytest.raises(BadInput) as error:
        run(**changed)
    assert "\n" not in str(error.value)


def test_the_keymap_names_every_weight_there_and_back():
    keymap = zimage_keymap(model.LAYERS, model.REFINERS)
    there = keymap.write(WEIGHTS)
    assert len(there) == len(WEIGHTS) + 2 * 3  # q, k and v apart, in three blocks
    assert there["layers.0.attention.to_k.weight"].shape == (model.D, model.D)
    sources, unread = keymap.sources(there)
    assert not unread
    assert sources.keys() == WEIGHTS.keys()
    for name, source in sources.items():
        np.testing.assert_array_equal(source.read(there).values(), WEIGHTS[name].values())
