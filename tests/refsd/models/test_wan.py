"""Wan's transformer against an answer recorded from diffusers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_models as tiny
import tiny_wan as model

from refsd.models.wan import positions, wan
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "wan.npz")
WEIGHTS = model.weights()
INPUTS = model.inputs()


def run(numerics=FLOAT64, taps=None, **changed):
    m = Module(WEIGHTS, Arithmetic(numerics), taps=taps)
    given = {**INPUTS, **changed}
    given |= {name: m.store(given[name]) for name in ("x", "context")}
    return wan(m, **given, axes_dim=model.AXES)


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


def test_the_recorded_answer_of_diffusers():
    taps = Taps()
    y = run(taps=taps)
    assert y.shape == (2, 4, 3, 4, 6)
    assert distance(tiny.sampled(y), RECORDED["out"]) <= 1e-12
    for name in ("blocks.0", "time_embedding"):
        assert distance(tiny.sampled(taps[name]), RECORDED[name]) <= 1e-12


def test_columns_run_fastest_and_frames_slowest():
    assert positions((2, 1, 2)).tolist() == [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]


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


def test_an_odd_side_is_told_in_one_line():
    with pytest.raises(BadInput, match="latents of 3 x 6: expected multiples of 2 x 2"):
        run(x=INPUTS["x"][..., :3, :])
