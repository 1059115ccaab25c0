"""Cases of samplers reach what mutations of their code had shown to be out of every case's reach."""

from functools import partial

import numpy as np
import pytest
from msgspec.structs import replace

from refsd.cases import CASES
from refsd.causes.trajectory.diagnose import diagnose
from refsd.causes.trajectory.mutants import MUTANTS
from refsd.causes.trajectory.simulate import simulate
from refsd.numerics.profiles import FLOAT32
from refsd.trajectory.forms import forms
from refsd.trajectory.run import churn_of, churning, model_of, sigmas_of, solver_of, trajectory


def test_a_restart_restarts():
    case = CASES["trajectory/restart/karras-20"]
    solver, sigmas = solver_of(case), sigmas_of(case)
    assert case.params["steps"] >= 20
    right, without = (forms(one, sigmas) for one in (solver, solver._replace(run=partial(solver.run, segments=[]))))
    assert right.draws == 1 and without.draws == 0


@pytest.mark.parametrize("sampler", ["euler", "heun", "dpm2", "heunpp2"])
def test_churn_adds_noise_to_the_middle_steps_and_no_limit_is_near_a_level(sampler):
    case = CASES[f"trajectory/{sampler}_churn/karras"]
    sigmas, churn = sigmas_of(case), churn_of(case)
    assert churn is not None
    form = forms(solver_of(case), sigmas)
    added = form.rows[:, form.known :].any(axis=0)
    assert added.tolist() == [False, True, True, True, False]
    raised = form.sigmas[np.flatnonzero(np.diff(form.steps, prepend=-1))] / sigmas[:-1]
    np.testing.assert_allclose(raised, [1, 1.3, 1.3, 1.3, 1])
    limits = np.array([[churn.s_tmin], [churn.s_tmax]])
    assert (np.abs(np.log(limits / sigmas[:-1])) > 0.1).all()


def test_churn_of_the_first_step_is_shown_to_the_model():
    """Without its upper limit noise is added before the first call: the known bug's trajectory is the sampler's."""
    case = CASES["trajectory/euler_churn/karras"]
    noise, sigmas = case.realize()["noise"].values().astype(np.float64), sigmas_of(case)
    churn = churn_of(case)
    assert churn is not None
    wrong = churning(case, churn._replace(s_tmax=np.inf))
    want = trajectory(wrong, sigmas, model_of(case), noise)
    (bug,) = (bug for bug in MUTANTS if bug.name == "churn's upper limit is left out")
    got = simulate(case, noise, sigmas, bug.change)
    assert got is not None
    np.testing.assert_allclose(got.x, want.x, rtol=1e-12)
    np.testing.assert_allclose(got.latent, want.latent, rtol=1e-12)
    assert not np.allclose(want.x[0], noise[0] * sigmas[0])
    found = diagnose(case, case.realize(), want.outputs(), FLOAT32)
    assert found == [bug.name]


def test_the_fast_solver_has_steps_of_each_order():
    for name, calls in (("exponential", 6), ("discrete", 7)):
        form = forms(solver_of(case := CASES[f"trajectory/dpm_fast/{name}"]), sigmas_of(case))
        assert form.calls == calls and np.isfinite(form.rows).all()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda sigmas: sigmas, "all 6 steps are made, where 4 are asked for"),
        (lambda sigmas: np.append(sigmas[:4], 0.0), "the last step goes to 0, not to the level of end_at_step"),
    ],
)
@pytest.mark.parametrize("sampler", ["euler", "dpmpp2m"])
def test_an_end_above_0_is_kept(sampler, wrong, says):
    """The solver's text is run on other sigmas, without the judge's rows."""
    case = CASES[f"trajectory/{sampler}/karras-ends-above-0"]
    whole = sigmas_of(replace(case, params={**case.params, "end_at_step": None}))
    assert len(sigmas_of(case)) == 5 and sigmas_of(case)[-1] == whole[4] > 0
    noise = case.realize()["noise"].values().astype(np.float32)
    found = trajectory(solver_of(case), wrong(whole), model_of(case), noise)
    (told,) = diagnose(case, case.realize(), found.outputs(), FLOAT32)
    assert told.startswith(says)


@pytest.mark.parametrize("sampler", ["euler", "dpmpp2m", "heun"])
def test_a_first_call_without_guidance_is_told(sampler):
    case = CASES[f"trajectory/{sampler}/karras"]
    guided, bare, calls = model_of(case), model_of(replace(case, params={**case.params, "guidance": 1.0})), []

    def model(x, sigma):
        calls.append(sigma)
        return (bare if len(calls) == 1 else guided)(x, sigma)

    found = trajectory(solver_of(case), sigmas_of(case), model, case.realize()["noise"].values().astype(np.float32))
    assert diagnose(case, case.realize(), found.outputs(), FLOAT32) == ["there is no guidance in the first call"]
