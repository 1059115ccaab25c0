"""Lumina 2's transformer against an answer recorded from diffusers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_lumina2 as model
import tiny_models as tiny

from refsd.models.lumina2 import caption_ids, lumina2, picture_ids
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "lumina2.npz")
WEIGHTS = model.weights()
INPUTS = model.inputs()


def run(numerics=FLOAT64, taps=None, **changed):
    m = Module(WEIGHTS, Arithmetic(numerics), taps=taps)
    given = {**INPUTS, **changed}
    given |= {name: m.store(given[name]) for name in ("x", "context")}
    return lumina2(m, **given, axes_dim=model.AXES)


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


def test_the_recorded_answer_of_diffusers():
    taps = Taps()
    y = run(taps=taps)
    assert y.shape == INPUTS["x"].shape
    assert distance(tiny.sampled(y), RECORDED["out"]) <= 1e-12
    for name in ("noise_refiner.0", "context_refiner.0", "layers.0"):
        assert distance(tiny.sampled(taps[name][1]), RECORDED[name]) <= 1e-12


def test_the_picture_follows_its_caption():
    """By hand, for captions of 2 and 3 tokens and a picture of 1 x 2."""
    assert caption_ids(1, 3).tolist() == [[[0, 0, 0], [1, 0, 0], [2, 0, 0]]]
    assert picture_ids(np.array([2, 3]), 1, 2).tolist() == [[[2, 0, 0], [2, 0, 1]], [[3, 0, 0], [3, 0, 1]]]


@pytest.mark.jitted
def test_what_stands_behind_a_caption_is_not_read():
    other = INPUTS["context"].copy()
    other[0, model.LENGTHS[0] :] = 3.0
    np.testing.assert_array_equal(run(context=other), run())
    assert distance(run(lengths=None), run()) > 1e-3


@pytest.mark.jitted
def test_the_items_of_a_batch_do_not_meet():
    both = run()
    for i in range(2):
        alone = run(**{name: x[i : i + 1] for name, x in INPUTS.items()})
        assert distance(alone[0], both[i]) <= 1e-13


# What a profile may be away from the truth: a few times what it measures here.
AWAY = {"float32": 2e-6, "torch-f16": 4e-3, "torch-bf16": 4e-2, "ggml-cpu": 4e-3}


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
def test_every_profile_runs_near_the_truth(profile):
    y = run(PROFILES[profile])
    assert y.dtype == PROFILES[profile].storage_dtype
    assert 0 < distance(tiny.sampled(y), RECORDED["out"]) <= AWAY[profile]


def test_a_length_that_does_not_fit_is_told_in_one_line():
    with pytest.raises(BadInput, match=r"lengths \[9, 3\]: expected 2 of 1 to 8"):
        run(lengths=np.array([9, 3]))
