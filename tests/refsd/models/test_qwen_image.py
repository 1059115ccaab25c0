"""Qwen-Image's transformer against answers recorded from diffusers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_models as tiny
import tiny_qwen_image as model

from refsd.models.qwen_image import centred_ids, qwen_image, text_ids
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64, PROFILES

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "qwen_image.npz")
WEIGHTS = model.weights()
INPUTS = model.inputs()


def run(numerics=FLOAT64, taps=None, **changed):
    m = Module(WEIGHTS, Arithmetic(numerics), taps=taps)
    given = {**INPUTS, **changed}
    given |= {name: m.store(given[name]) for name in ("x", "context")}
    given["reference"] = [m.store(picture) for picture in given.get("reference", ())]
    return qwen_image(m, **given, axes_dim=model.AXES)


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


def test_the_recorded_answers_of_diffusers():
    taps = Taps()
    y = run(taps=taps)
    assert y.shape == INPUTS["x"].shape
    assert distance(tiny.sampled(y), RECORDED["out"]) <= 1e-12
    for name in ("transformer_blocks.0.0", "norm_out"):
        assert distance(tiny.sampled(taps[name]), RECORDED[name]) <= 1e-12
    edited = run(reference=model.references(), zero_cond_t=True)
    assert distance(tiny.sampled(edited), RECORDED["edit"]) <= 1e-12
    assert distance(run(reference=model.references()), edited) > 1e-3


def test_positions_count_from_the_centre_and_the_text_follows_on_the_diagonal():
    """By hand, for pictures of 3 x 2 and 1 x 4 tokens."""
    assert centred_ids(6, 4).tolist() == [[0, r, c] for r in (-2, -1, 0) for c in (-1, 0)]
    assert centred_ids(2, 8, index=2).tolist() == [[2, -1, c] for c in (-2, -1, 0, 1)]
    assert text_ids(2, 5).tolist() == [[5, 5, 5], [6, 6, 6]]


@pytest.mark.jitted
def test_what_the_mask_hides_is_not_read():
    """Hidden text still computes, so it must be finite, but no shown token depends on it."""
    other = INPUTS["context"].copy()
    other[1, 5:] = 3.0
    np.testing.assert_array_equal(run(context=other), run())
    assert distance(run(context_mask=None), run()) > 1e-3


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
    y = run(PROFILES[profile])
    assert y.dtype == PROFILES[profile].storage_dtype
    assert 0 < distance(tiny.sampled(y), RECORDED["out"]) <= AWAY[profile]
