"""Every known bug of a sampler is found by a case, and named; every case finds one."""

import functools

import numpy as np
import pytest
from typer.testing import CliRunner

from refsd.cases import trajectories
from refsd.causes.trajectory.diagnose import diagnose
from refsd.causes.trajectory.mutants import MUTANTS, Change, _with_eta
from refsd.causes.trajectory.simulate import simulate
from refsd.cli import app
from refsd.golden import verdict
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.trajectory.measure import measure_trajectory
from refsd.trajectory.run import answer

_CASES = {case.name: case for case in trajectories.CASES}


@functools.cache
def truth(name):
    case = _CASES[name]
    inputs = case.realize()
    return inputs, *(answer(case, inputs, n.compute_dtype) for n in (FLOAT64, FLOAT32))


def trial(case, bug):
    """None where the bug makes no difference; else whether it fails, and what it is called."""
    inputs, right, honest = truth(case.name)
    wrong = simulate(case, inputs["noise"].values().astype(np.float32), right["sigmas"], bug.change)
    if wrong is None or wrong.x.shape != right["x"].shape:
        return None
    found = wrong.outputs()
    judged = verdict.judge(measure_trajectory(case, inputs, found, right, honest, FLOAT32))
    return not judged.passed, diagnose(case, inputs, found, FLOAT32)


@pytest.mark.parametrize("bug", MUTANTS, ids=lambda bug: bug.name)
def test_every_bug_is_found_and_named(bug):
    """By the first cases in which it makes a difference."""
    trials = (trial(case, bug) for case in trajectories.CASES)
    told = next(t for t in trials if t is not None)
    assert told[0], f"{bug.name} gets through"
    assert bug.name in told[1]
    if bug.change.sigmas is None:
        assert told[1] == [bug.name]


OF_SOME = [bug for bug in MUTANTS if bug.change.of is not Change().of and not bug.change.sigmas]


@pytest.mark.parametrize("bug", OF_SOME, ids=lambda bug: bug.name)
def test_bugs_of_flows_and_of_cfg_pp_are_found_by_each_of_their_cases(bug):
    trials = [t for case in trajectories.CASES if (t := trial(case, bug)) is not None]
    assert len(trials) >= 2
    assert all(failed and named == [bug.name] for failed, named in trials)


@pytest.mark.parametrize("case", trajectories.CASES, ids=lambda case: case.name)
def test_every_case_fails_a_bug_of_its_own_sampler(case):
    own = ("each step", "history", "noise", "the last")
    found = [trial(case, bug) for bug in MUTANTS if bug.name.startswith(own)]
    assert all(t[0] and len(t[1]) == 1 for t in found if t is not None)
    assert any(t is not None for t in found)


@pytest.mark.parametrize("change", [lambda eta: np.sqrt(eta), lambda eta: 0.9 * eta])
def test_another_eta_in_the_noise_is_told_only_if_it_is_made_of_the_right_one(change):
    case = _CASES["trajectory/euler_a/karras-eta-0.6"]
    inputs, right, _ = truth(case.name)
    wrong = simulate(case, inputs["noise"].values().astype(np.float32), right["sigmas"], _with_eta(change, False))
    assert wrong is not None
    told = diagnose(case, inputs, wrong.outputs(), FLOAT32)
    assert (told == ["eta's root stands for eta in the noise"]) == (change(1.0) == 1), told
    assert not any("eta" in one for one in told) or change(1.0) == 1


def test_an_honest_engine_has_no_bug():
    for case in trajectories.CASES[:3]:
        inputs, _, honest = truth(case.name)
        assert diagnose(case, inputs, honest, FLOAT32) == []


def test_two_bugs_at_once_are_not_named():
    case = _CASES["trajectory/dpmpp2m/karras"]
    inputs, right, _ = truth(case.name)
    noise = inputs["noise"].values().astype(np.float32)
    forgotten = next(bug.change for bug in MUTANTS if bug.name == "history is forgotten")
    wrong = simulate(case, noise, right["sigmas"], forgotten)
    assert wrong is not None
    found = wrong.outputs() | {"denoised": wrong.denoised * np.float32(1.01)}
    assert diagnose(case, inputs, found, FLOAT32) == []


@pytest.mark.parametrize(("name", "deviation"), [("euler_a", 0.02), ("ddpm", 0.015), ("dpmppsde", 0.025)])
def test_noise_after_the_last_step_is_told(name, deviation):
    """Of no draw that the case knows: by its look."""
    case = _CASES[f"trajectory/{name}/karras"]
    inputs, _, honest = truth(case.name)
    more = np.random.default_rng(7).standard_normal(honest["latent"].shape)
    told = diagnose(case, inputs, {**honest, "latent": honest["latent"] + deviation * more}, FLOAT32)
    assert told and told[0].startswith("noise is added after the last step, too, of deviation 0.0"), told
    for other in (0.01 * honest["latent"], 0.01, 10 * more):
        assert diagnose(case, inputs, {**honest, "latent": honest["latent"] + other}, FLOAT32) != told


@pytest.mark.parametrize(("name", "call"), [("euler_a", 1), ("dpmppsde", 1), ("flow/lcm", 1)])
def test_noise_of_another_stream_is_told(name, call):
    case = _CASES[f"trajectory/{name}/{'simple' if '/' in name else 'karras'}"]
    inputs, right, _ = truth(case.name)
    noise = inputs["noise"].values().astype(np.float32)
    noise[1:] = np.random.default_rng(11).standard_normal(noise[1:].shape)
    wrong = simulate(case, noise, right["sigmas"], Change())
    assert wrong is not None
    told = diagnose(case, inputs, wrong.outputs(), FLOAT32)
    assert told == [f"the noise of x[{call}] is of another stream, not draw 1"], told
    noise[1:] = 0
    quiet = simulate(case, noise, right["sigmas"], Change())
    assert quiet is not None and diagnose(case, inputs, quiet.outputs(), FLOAT32) != told


def test_show_mutants_has_them():
    shown = CliRunner().invoke(app, ["golden", "show", "trajectory/flow/euler_cfg_pp/simple", "--mutants"])
    assert "| trajectory | uncond is not scaled by 1 - sigma | 1 | 1 |" in shown.output
