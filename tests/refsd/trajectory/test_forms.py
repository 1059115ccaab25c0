"""Samplers as linear forms, against the samplers themselves."""

import numpy as np
import pytest
from naive import euler as naive

from refsd.cases import trajectories
from refsd.numerics.profiles import FLOAT64
from refsd.samplers import CFG_PP_SAMPLERS, FLOW_SAMPLERS, SAMPLERS
from refsd.samplers.euler import euler
from refsd.trajectory.forms import Solver, forms, sensitivities
from refsd.trajectory.run import Dump, answer, solver_of

SIGMAS = np.array([14.6, 5.0, 1.2, 0.3, 0.0])


def test_euler_by_hand():
    """x + (x - D) / sigma (sigma_next - sigma) = (sigma_next / sigma) x + (1 - sigma_next / sigma) D."""
    form = forms(Solver(SAMPLERS["euler"]), SIGMAS)
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
    form = forms(Solver(SAMPLERS["euler"]), SIGMAS)
    for k in range(4):
        terms = np.concatenate([np.stack([*shown, *np.zeros((3 - k, 3))]), answers])
        shown.append(form.rows[k + 1] @ terms)
    np.testing.assert_allclose(shown[-1], end, rtol=1e-12)


def test_two_calls_a_step_and_noise():
    form = forms(Solver(SAMPLERS["dpm++2s_a"]), SIGMAS)
    assert form.calls == 7 and form.draws == 3
    np.testing.assert_array_equal(form.steps, [0, 0, 1, 1, 2, 2, 3])
    np.testing.assert_allclose(form.sigmas[2], SIGMAS[1])


@pytest.mark.parametrize("case", trajectories.CASES, ids=lambda case: case.name)
def test_forms_give_what_the_sampler_gives(case):
    y = answer(case, case.realize(), FLOAT64.compute_dtype)
    noise = case.realize()["noise"].values().astype(np.float64)
    form = forms(solver_of(case), y["sigmas"])
    assert len(noise) == 1 + form.draws
    terms = np.concatenate([y["x"], Dump(**y).answers(), noise[1:]])
    shown = np.concatenate([y["x"], y["latent"][None]])
    found = np.tensordot(form.rows, terms, 1)
    np.testing.assert_allclose(found[1:], shown[1:], rtol=1e-12, atol=1e-12)


def test_sensitivities():
    """Euler's coefficient sigma_next / sigma moves by itself with ln sigma_next, by its negative with ln sigma."""
    slopes = sensitivities(Solver(SAMPLERS["euler"]), SIGMAS)
    ratio = SIGMAS[2] / SIGMAS[1]
    np.testing.assert_allclose(slopes[2][2, 1], ratio, rtol=1e-6)
    np.testing.assert_allclose(slopes[1][2, 1], -ratio, rtol=1e-6)
    assert slopes.shape == (4, 5, 8)


def test_an_opening_stands_for_a_flows_first_sigma():
    """1 is exact and its rows stay; what stands for it moves them."""
    sigmas = np.array([1.0, 0.7, 0.2, 0.0])
    assert not sensitivities(Solver(FLOW_SAMPLERS["euler_a"], flow=True), sigmas)[0].any()
    solver = Solver(FLOW_SAMPLERS["dpm++2m_sde"], flow=True, opening=0.9999)
    assert sensitivities(solver, sigmas)[0].any() and sensitivities(solver, sigmas)[1].any()


def test_forms_of_a_solver_with_latents_of_its_own_are_of_each_step():
    """y = x / (1 - sigma) is kept; still a row is what it is of the step's own x, as Euler's is of the flow's."""
    sigmas = np.array([0.9, 0.5, 0.2, 0.0])

    def keeping(model, x, sigmas, noise, callback):
        asked = lambda y, sigma: model(y / (1 + sigma), sigma / (1 + sigma))
        heard = lambda i, sigma, y, denoised: callback(i, sigma, y, denoised)
        return euler(asked, x / (1 - sigmas[0]), sigmas / (1 - sigmas), noise, heard)

    rows = [forms(Solver(run, flow=True), sigmas).rows for run in (keeping, euler)]
    np.testing.assert_allclose(*rows, rtol=1e-12, atol=1e-14)


def test_cfg_pp_by_hand():
    """denoised + sigma_next (x - uncond) / sigma."""
    form = forms(Solver(CFG_PP_SAMPLERS["euler_cfg_pp"], answers=2), SIGMAS)
    assert form.known == 12 and form.draws == 0
    expected = np.zeros(12)
    expected[[1, 5, 9]] = SIGMAS[2] / SIGMAS[1], 1, -SIGMAS[2] / SIGMAS[1]
    np.testing.assert_allclose(form.rows[2], expected, atol=1e-15)


def test_too_many_calls_are_refused():
    def endless(model, x, sigmas, noise, callback):
        while True:
            x = model(x, 1.0)

    with pytest.raises(ValueError, match="more than"):
        forms(Solver(endless), SIGMAS)
