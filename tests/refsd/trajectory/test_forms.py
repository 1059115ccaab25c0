"""Samplers as linear forms, against the samplers themselves."""

import numpy as np
import pytest
from naive import euler as naive

from refsd.golden.cases import trajectories
from refsd.golden.numerics import FLOAT64
from refsd.samplers import SAMPLERS
from refsd.trajectory.forms import forms, sensitivities
from refsd.trajectory.run import answer, method_of

SIGMAS = np.array([14.6, 5.0, 1.2, 0.3, 0.0])


def test_euler_by_hand():
    """x + (x - D) / sigma (sigma_next - sigma) = (sigma_next / sigma) x + (1 - sigma_next / sigma) D."""
    form = forms(SAMPLERS["euler"], SIGMAS)
    assert form.calls == 4 and form.draws == 0
    np.testing.assert_array_equal(form.sigmas, SIGMAS[:-1])
    np.testing.assert_array_equal(form.steps, np.arange(4))
    for k, ratio in enumerate(SIGMAS[1:] / SIGMAS[:-1]):
        expected = np.zeros(8)
        expected[[k, 4 + k]] = ratio, 1 - ratio
        np.testing.assert_allclose(form.rows[k + 1], expected, atol=1e-15)


def test_naive_euler_is_the_same_form():
    rng = np.random.default_rng(0)
    answers = rng.standard_normal((4, 3))
    calls = iter(answers)
    x = rng.standard_normal(3)
    end = naive.euler(lambda x, sigma: next(calls), x, SIGMAS)
    shown = [x]
    form = forms(SAMPLERS["euler"], SIGMAS)
    for k in range(4):
        terms = np.concatenate([np.stack([*shown, *np.zeros((3 - k, 3))]), answers])
        shown.append(form.rows[k + 1] @ terms)
    np.testing.assert_allclose(shown[-1], end, rtol=1e-12)


def test_two_calls_a_step_and_noise():
    form = forms(SAMPLERS["dpm++2s_a"], SIGMAS)
    assert form.calls == 7 and form.draws == 3
    np.testing.assert_array_equal(form.steps, [0, 0, 1, 1, 2, 2, 3])
    np.testing.assert_allclose(form.sigmas[2], SIGMAS[1])


@pytest.mark.parametrize("case", trajectories.CASES, ids=lambda case: case.name)
def test_forms_give_what_the_sampler_gives(case):
    y = answer(case, case.realize(), FLOAT64.compute_dtype)
    noise = case.realize()["noise"].values().astype(np.float64)
    form = forms(method_of(case).run, y["sigmas"])
    assert len(noise) == 1 + form.draws
    terms = np.concatenate([y["x"], y["denoised"], noise[1:]])
    shown = np.concatenate([y["x"], y["latent"][None]])
    found = np.tensordot(form.rows, terms, 1)
    np.testing.assert_allclose(found[1:], shown[1:], rtol=1e-12, atol=1e-12)


def test_sensitivities():
    """Euler's coefficient sigma_next / sigma moves by itself with ln sigma_next, by its negative with ln sigma."""
    slopes = sensitivities(SAMPLERS["euler"], SIGMAS)
    ratio = SIGMAS[2] / SIGMAS[1]
    np.testing.assert_allclose(slopes[2][2, 1], ratio, rtol=1e-6)
    np.testing.assert_allclose(slopes[1][2, 1], -ratio, rtol=1e-6)
    assert slopes.shape == (4, 5, 8)


def test_too_many_calls_are_refused():
    def endless(model, x, sigmas, noise, callback):
        while True:
            x = model(x, 1.0)

    with pytest.raises(ValueError, match="more than"):
        forms(endless, SIGMAS)
