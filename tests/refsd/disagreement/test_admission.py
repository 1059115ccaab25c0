"""Whether a candidate may take a baseline's place: each rule refuses what breaks it, and nothing else."""

import json

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from refsd import __version__
from refsd.cases import CASES, select
from refsd.cli import app
from refsd.disagreement.admission import RULE, compare, of_engines, of_results
from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.golden.engine import EngineFailure
from refsd.golden.report import Result
from refsd.judges import judges
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, TORCH_BF16, TORCH_F32

_CASES = select("linear/f32/tokens*") + select("layer_norm/f32/tiny*")


class Engine:
    """Answer in float32; `change` makes another answer of that and of the truth."""

    version = "1"

    def __init__(self, name, change=lambda y, truth: y, refused=""):
        self.name, self.change, self.refused = name, change, refused
        self.own, self.truth = Reference(TORCH_F32), Reference()

    def refuses(self, case):
        return "not mine" if self.refused and case.name.startswith(self.refused) else None

    def numerics(self, case):
        return TORCH_BF16  # so that the derived bound leaves room, and the other rule decides

    def deviations(self, case):
        return ()

    def run(self, case, inputs):
        y = self.own.run(case, inputs)["y"].astype(np.float64)
        return {"y": self.change(y, self.truth.run(case, inputs)["y"])}


def _admission(change, before=None, cases=_CASES, **candidate):
    truth = Reference()
    runner = conform.Runner(judges(None), lambda case: truth.run(case, case.realize()), [])
    baseline = Engine("before", before or _noise(1e-5))
    return of_engines(runner, baseline, Engine("after", change, **candidate), cases, __version__)


def _noise(size, mean=0.0):
    def change(y, truth):
        signs = np.random.default_rng(7).normal(size=y.shape)
        return truth + size * (signs + mean)

    return change


def _nan(y, truth):
    y = _noise(1e-5)(y, truth)
    y.flat[3] = np.nan
    return y


def test_the_same_errors_are_admitted():
    admission = _admission(_noise(1e-5))
    assert admission.admitted and admission.ratio == pytest.approx(1)
    assert "before 1 -> after 1: ADMITTED: 2 cases" in admission.line and RULE in admission.line
    assert "\n" not in admission.line


@pytest.mark.parametrize(("times", "admitted"), [(0.2, True), (1.45, True), (1.55, False), (4.0, False)])
def test_errors_beyond_one_and_a_half_times_are_not(times, admitted):
    admission = _admission(_noise(times * 1e-5))
    assert admission.admitted == admitted and admission.ratio == pytest.approx(times, rel=1e-6)
    assert admitted or all("at most 1.5x allowed" in case.faults[0] for case in admission.cases)


@pytest.mark.parametrize(("mean", "admitted"), [(0.1, True), (0.4, False)])
def test_a_bias_beyond_a_quarter_is_not(mean, admitted):
    admission = _admission(_noise(1e-5, mean))
    assert admission.admitted == admitted
    assert admitted or any("bias" in fault for case in admission.cases for fault in case.faults)


def test_a_bias_that_the_baseline_has_is_admitted():
    biased = _noise(1e-5, 0.6)
    assert _admission(biased, biased).admitted


def test_what_is_below_float32s_rounding_is_no_worse():
    exact, last_bit = _noise(0.0), lambda y, truth: truth * (1 + 2.0**-26)
    assert _admission(last_bit, exact).admitted
    assert not _admission(lambda y, truth: truth * (1 + 2.0**-20), exact).admitted


def test_a_new_nan_is_not_admitted_and_an_old_one_is():
    admission = _admission(_nan)
    assert not admission.admitted and [case.special for case in admission.cases] == [1, 1]
    assert "1 more NaN or infinite than before" in admission.cases[0].faults
    assert _admission(_nan, _nan).admitted
    assert _admission(_noise(1e-5), _nan).admitted


def test_a_broken_bound_is_not_admitted():
    admission = _admission(_noise(0.5), _noise(0.4))
    assert admission.admitted and [case.bounds for case in admission.cases] == [(False, False)] * 2
    broken = _admission(_noise(0.5), _noise(1e-5)).cases[0]
    assert broken.bounds == (True, False) and "breaks its derived bound" in broken.faults[0]


def test_no_answer_is_not_admitted():
    def dies(y, truth):
        raise EngineFailure("out of memory")

    admission = _admission(dies)
    assert not admission.admitted and "out of memory" in admission.cases[0].faults[0]


def test_an_operation_that_the_candidate_has_lost_is_a_fault():
    admission = _admission(_noise(1e-5), refused="linear")
    (lost,) = [case for case in admission.cases if case.faults]
    assert not admission.admitted and lost.case.startswith("linear/") and "does not take it" in lost.faults[0]


def test_what_the_baseline_does_not_take_is_not_compared():
    truth = Reference()
    runner = conform.Runner(judges(None), lambda case: truth.run(case, case.realize()), [])
    engines = Engine("before", _noise(1e-5), refused="linear"), Engine("after", _noise(1e-5))
    admission = of_engines(runner, *engines, _CASES, __version__)
    assert admission.admitted and [name.split("/")[0] for name in admission.refused] == ["linear"]
    nothing = of_engines(runner, *engines, [case for case in _CASES if case.op == "linear"], __version__)
    assert not nothing.admitted and "no case that the baseline answers" in nothing.line


def test_a_waived_failure_keeps_no_bound():
    passes = Result("e", "gelu/1", "gelu", verdict.PASS)
    waived, lost = (msgspec.structs.replace(passes, status=status) for status in (verdict.WAIVED, verdict.REFUSED))
    assert compare(passes, waived).bounds == (True, False) and compare(passes, waived).faults
    assert compare(waived, waived).bounds == (False, False) and not compare(waived, waived).faults
    assert not of_results("1", {"a": "", "b": ""}, [passes], [lost]).admitted
    assert of_results("1", {"a": "", "b": ""}, [lost], [passes]).refused == ["gelu/1"]


def test_flipped_whole_numbers_are_not_admitted():
    case = CASES["stage/language_tokens/flux-t5"]
    truth = Reference()

    class Flipping(Reference):
        def __init__(self, name, flips):
            super().__init__(FLOAT32)
            self.name, self.flips = name, flips

        def run(self, case, inputs):
            answer = super().run(case, inputs)
            answer["ids"] = answer["ids"].copy()
            answer["ids"].flat[: self.flips] += 1
            return answer

    runner = conform.Runner(judges(None), lambda case: truth.run(case, case.realize()), [])
    for flips, admitted in ((0, True), (2, False)):
        admission = of_engines(runner, Flipping("a", 0), Flipping("b", flips), [case], __version__)
        assert (admission.admitted, admission.cases[0].flips) == (admitted, flips)
    assert "2 flips" in admission.line


def _refsd(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_the_command_and_its_exit_codes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = ("--cases", "linear/f32/tokens*")
    same = _refsd("admit", "refsd:float32", "refsd:float32", *cases)
    assert same.exit_code == 0 and "refsd-float32 (after)" in same.output and "ADMITTED" in same.output
    worse = _refsd("admit", "refsd:float32", "refsd:torch-bf16", *cases, "--json")
    assert worse.exit_code == 1
    told = json.loads(worse.stdout)
    assert not told["admitted"] and told["cases"][0]["ratio"] > 1000 and told["rule"] == RULE


def test_two_reports(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("float32", "torch-bf16"):
        _refsd("conform", f"refsd:{name}", "--cases", "linear/f32/tokens*", "--report", name)
    _refsd("conform", "refsd:float32", "refsd:torch-f32", "--cases", "linear/f32/tokens*", "--report", "both")
    before, after, both = (f"{name}/conform.json" for name in ("float32", "torch-bf16", "both"))
    assert _refsd("admit", before, before).exit_code == 0
    assert _refsd("admit", after, before).exit_code == 0
    assert _refsd("admit", before, after).exit_code == 1
    assert _refsd("admit", before, f"{both}:refsd-torch-f32").exit_code == 0
    assert _refsd("admit", before, before, "--cases", "conv2d/*").exit_code == 1
    for wrong in ((before, "refsd:float32"), (before, both), (f"{before}:x", before), ("no.json", before)):
        assert isinstance(_refsd("admit", *wrong).exception, BadInput)


def test_a_case_that_the_baseline_does_not_answer_admits_nobody():
    def fails(y, truth):
        raise EngineFailure("out of order")

    outcome = _admission(fails, before=fails)
    assert not outcome.admitted and not outcome.cases and len(outcome.refused) == len(_CASES)
    outcome = _admission(fails)
    assert not outcome.admitted and all("no answer" in case.faults[0] for case in outcome.cases)
