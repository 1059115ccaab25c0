"""Trajectories judged: honest ones pass, chaos is no error, an error is found where it is made."""

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.cases import CASES, trajectories
from refsd.causes.trajectory.diagnose import diagnose
from refsd.causes.trajectory.mutants import MUTANTS
from refsd.causes.trajectory.simulate import simulate
from refsd.cli import app
from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.judges import judges
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.samplers import SAMPLERS
from refsd.trajectory.forms import Solver, forms
from refsd.trajectory.measure import displaced, measure_trajectory
from refsd.trajectory.run import answer, trajectory

CASE = CASES["trajectory/dpmpp2m/karras"]
SIGMAS = np.array([14.6, 5.0, 1.2, 0.3, 0.1, 0.0])
EULER = Solver(SAMPLERS["euler"])
NOISE = np.random.default_rng(5).standard_normal((1, 1, 4, 6, 6))


def measured(case, found):
    inputs = case.realize()
    truth, honest = (answer(case, inputs, n.compute_dtype) for n in (FLOAT64, FLOAT32))
    return measure_trajectory(case, inputs, found, truth, honest, FLOAT32)


def answered(case=CASE, dtype: type = np.float32):
    return answer(case, case.realize(), np.dtype(dtype))


@pytest.mark.parametrize("case", trajectories.CASES, ids=lambda case: case.name)
def test_honest_float32_runs_pass(case):
    """The sampler itself, and the same sums in another order."""
    noise = case.realize()["noise"].values().astype(np.float32)
    other = simulate(case, noise, answered(case, np.float64)["sigmas"])
    assert other is not None
    for found in (answered(case), other.outputs()):
        judged = verdict.judge(measured(case, found))
        assert judged.passed, judged.reason


def test_an_error_is_named_where_it_is_made():
    found = answered()
    found["x"][3, 0, 1, 2, 3] += 1e-3
    metrics = measured(CASE, found)
    judged = verdict.judge(metrics)
    assert not judged.passed and judged.reason.startswith("x[3]: element [0, 1, 2, 3]")
    wrong = [m.output for m in metrics if not verdict.judge_output(m).passed]
    assert "x[2]" not in wrong and "x[2], free-running" not in wrong


def test_a_wrong_answer_of_the_model_is_its_own():
    found = answered()
    found["denoised"][2] *= 1.001
    assert verdict.judge(measured(CASE, found)).reason.startswith("denoised[2]")


def test_sigmas_come_first():
    found = answered()
    found["sigmas"] = found["sigmas"] * 1.01
    assert verdict.judge(measured(CASE, found)).reason.startswith("sigmas")
    found["sigmas"] = found["sigmas"][::-1].copy()
    assert [m.output for m in measured(CASE, found)] == ["sigmas"]


@pytest.mark.parametrize("change", [lambda s: s * 1e300, lambda s: s * 1e-300, lambda s: s - 1e-9])
@pytest.mark.parametrize("sampler", ["flow/sa_solver", "flow/seeds_3", "flow/euler_a_cfg_pp", "ipndm_v_published"])
def test_sigmas_that_no_solver_can_step_through(sampler, change):
    (case,) = [case for case in trajectories.CASES if case.name.startswith(f"trajectory/{sampler}/")]
    found = answered(case, np.float64)
    found["sigmas"] = change(found["sigmas"])
    metrics = measured(case, found)
    assert [m.output for m in metrics] == ["sigmas"] and not verdict.judge(metrics).passed
    causes = diagnose(case, case.realize(), found, FLOAT32)
    assert causes in ([], ["sigmas is 1e-300 times what it should be"])


def not_finite(found, name, call: Any = ...):
    found[name] = found[name].copy()
    found[name][call] = np.nan
    return found


def test_wrong_sigmas_are_named_before_the_latent_that_they_spoil():
    found = not_finite(answered(), "latent")
    found["sigmas"] = found["sigmas"] * np.float32(1.01)
    assert verdict.judge(measured(CASE, found)).reason.startswith("sigmas: element")


def test_an_error_is_named_before_the_numbers_that_it_spoils():
    found = not_finite(not_finite(not_finite(answered(), "x", 4), "denoised", 3), "latent")
    found["denoised"][1] *= np.float32(1.001)
    assert verdict.judge(measured(CASE, found)).reason.startswith("denoised[1]: ")


@pytest.mark.parametrize(("name", "call"), [("x", 0), ("x", 3), ("denoised", 2), ("latent", ...), ("sigmas", 1)])
def test_the_first_number_that_is_not_finite_is_named_where_it_is(name, call):
    found = not_finite(answered(), name, call)
    if name == "x":
        found = not_finite(found, "latent")
    metrics = measured(CASE, found)
    judged = verdict.judge(metrics)
    at = name if name in ("latent", "sigmas") else f"{name}[{call}]"
    assert not judged.passed and judged.reason.startswith(f"{at}: ") and "not finite" in judged.reason
    assert all(verdict.judge_output(m).passed for m in metrics if m.output != at)


@pytest.mark.parametrize(
    "broken",
    [
        lambda y: {k: v for k, v in y.items() if k != "latent"},
        lambda y: {**y, "more": y["latent"]},
        lambda y: {**y, "x": y["x"][:-1]},
        lambda y: {**y, "x": np.float32(1)},
        lambda y: {**y, "denoised": y["denoised"] * np.float32(np.nan)},
    ],
)
def test_missing_extra_misshapen_and_not_finite(broken):
    found = broken(answered())
    judged = verdict.judge(measured(CASE, found))
    assert not judged.passed and judged.criterion == "output"
    if "more" not in found:
        nan = ["denoised[0] is not finite, x[0] is: so the model answers, or what is made of its answer"]
        expected = [] if np.isfinite(found["denoised"]).all() else nan
        assert diagnose(CASE, CASE.realize(), found, FLOAT32) == expected


def chaotic(x, sigma):
    """A denoiser whose answer turns with every hundredth of x."""
    return np.sin(300 * x) / (1 + sigma)


def test_chaos_is_no_error():
    """Two honest runs of a chaotic model end far apart, and no farther than their roundings grow."""
    wide = trajectory(EULER, SIGMAS, chaotic, NOISE)
    narrow = trajectory(EULER, SIGMAS, chaotic, NOISE.astype(np.float32))
    limits = np.stack([2e-6 * np.abs(x) for x in (*wide.x, wide.latent)])
    answers = 1e-6 + 300 * np.abs(wide.x) * 2**-23
    _, grown = displaced(forms(EULER, SIGMAS), SIGMAS, chaotic, NOISE, limits, answers[:, None])
    apart = np.abs(narrow.latent - wide.latent)
    rms = np.sqrt(np.mean(apart**2))
    assert rms > 1e-4
    assert rms < 2 * np.sqrt(np.mean(grown[-1] ** 2))


def test_conform_says_which_bug():
    """The runner, an engine with a bug, and the reason in its report."""

    class Forgetful:
        name, version = "forgetful", "1"

        def refuses(self, case):
            return None

        def numerics(self, case):
            return FLOAT32

        def deviations(self, case):
            return ()

        def run(self, case, inputs):
            noise = inputs["noise"].values().astype(np.float32)
            sigmas = answered(case, np.float64)["sigmas"]
            bug = next(b.change for b in MUTANTS if b.name == "history is forgotten")
            found = simulate(case, noise, sigmas, bug)
            assert found is not None
            return found.outputs()

    truth = Reference()
    runner = conform.Runner(judges(), lambda case: truth.run(case, case.realize()))
    wrong, right = conform.run(runner, [Forgetful(), Reference(FLOAT32)], [CASE])
    assert wrong.status == "fail" and wrong.reason.startswith("x[2]: ")
    assert wrong.reason.endswith("the reference agrees if history is forgotten")
    assert right.status == "pass"


def test_a_dump_is_compared_and_its_bug_named(tmp_path):
    """refsd compare FILE CASE, of a trajectory without noise."""
    case = CASES["trajectory/euler_a/karras"]
    noise = case.realize()["noise"].values().astype(np.float32)
    bug = next(b.change for b in MUTANTS if b.name.startswith("eta is missing"))
    wrong = simulate(case, noise, answered(case, np.float64)["sigmas"], bug)
    assert wrong is not None
    for name, found in (("right", answered(case)), ("wrong", wrong.outputs())):
        save_file(
            {k: np.ascontiguousarray(v, np.float32) for k, v in found.items()}, tmp_path / f"{name}.safetensors"
        )
    said = {}
    for name in ("right", "wrong"):
        path = tmp_path / f"{name}.safetensors"
        said[name] = CliRunner().invoke(
            app, ["compare", str(path), case.name, "--store", str(tmp_path / "goldens")]
        )
    assert said["right"].exit_code == 0 and "FAIL" not in said["right"].output
    assert said["wrong"].exit_code == 1
    assert "the reference agrees if eta is missing: no noise is added" in said["wrong"].output
