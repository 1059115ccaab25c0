"""Engines of every kind of fault, put to the runner."""

import contextlib
import datetime
import re
import time
from collections.abc import Mapping
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from refsd.cases import CASES, select
from refsd.causes.operation import unlisted
from refsd.engines import registry
from refsd.engines.reference import Reference
from refsd.golden import search_cuts, verdict
from refsd.golden.case import Case
from refsd.golden.cause_kinds import is_all, kinds
from refsd.golden.conform import Runner, after_asking_again, run, with_shared_causes, with_waivers
from refsd.golden.engine import EngineFailure
from refsd.golden.explanation import Explanation
from refsd.golden.judge import Judges
from refsd.golden.metrics import measure
from refsd.golden.recipe import Recipe
from refsd.golden.repeated_requests import CHANGING
from refsd.golden.report import Report, Result
from refsd.golden.search_cuts import TimeLimit, noted_cuts
from refsd.golden.shared_traits import shared_traits
from refsd.golden.shortages import FLOORS, shortages, unjudged
from refsd.golden.waivers import Waiver
from refsd.judges import judges
from refsd.judges.operation import OperationJudge
from refsd.kernels import _jit
from refsd.numerics.deviations import DEVIATIONS, Deviation
from refsd.numerics.errors import BadInput
from refsd.numerics.printable import in_markdown
from refsd.numerics.profiles import FLOAT32, FLOAT64, TORCH_F16
from refsd.reports.cells import margin_text
from refsd.reports.groups import groups
from refsd.reports.junit import junit
from refsd.reports.markdown import markdown
from refsd.reports.stored import decode, encode
from refsd.reports.terminal import print_report, summary, table

# The search for a cause has some seconds of CPU.
pytestmark = pytest.mark.jitted

_GELU = CASES["gelu/f32/bend-x33x77"]
_NORM = CASES["group_norm/f32/tiny-n2-c64-h6-w5-g32"]
_EPS = DEVIATIONS["sdcpp/group-norm-eps"]
_TANH = DEVIATIONS["sdcpp/gelu-tanh"]


class Engine:
    """The reference in `computes`, declaring `declares`, with its answer changed."""

    name = "fake"
    version = "1"

    def __init__(self, change=lambda y, inputs: y, computes=FLOAT32, declares=FLOAT32, deviations=(), known=()):
        self._reference = Reference(computes, deviations)
        self._change, self._declares, self._known = change, declares, tuple(known)

    def refuses(self, case):
        return "only float32 inputs" if "/f16/" in case.name else None

    def numerics(self, case):
        return self._declares

    def deviations(self, case) -> tuple[Deviation, ...]:
        return self._known

    def run(self, case, inputs):
        answer = self._change(self._reference.run(case, inputs)["y"], inputs)
        return answer if isinstance(answer, Mapping) else {"y": answer}


def _runner(waivers=(), today=None):
    truth = Reference(FLOAT64)
    return Runner(judges(), lambda case: truth.run(case, case.realize()), waivers, today)


def _judge(engine, case=_GELU, **how) -> Result:
    return run(_runner(**how), [engine], [case])[0]


def _crash(y, inputs):
    raise EngineFailure("segmentation fault\nat 0x0")


def _surprise(y, inputs):
    raise ZeroDivisionError("oh")


def _spoil(y, inputs):
    inputs["x"].data[:] = 0
    return y


def _stale(y, inputs):
    """What a buffer holds that nobody wrote: poison in one place."""
    y = y.copy()
    y[3, 4] = np.frombuffer(b"\xff\xff\xff\xff", np.float32)[0]
    return y


@pytest.mark.smoke
def test_an_honest_engine_passes():
    result = _judge(Engine())
    assert (result.status, result.conforms) == (verdict.PASS, True)
    assert 0 < result.margin <= 1
    assert result.outputs


def test_better_than_declared_passes():
    assert _judge(Engine(computes=FLOAT32, declares=TORCH_F16)).status == verdict.PASS


@pytest.mark.smoke
def test_worse_than_declared_fails():
    assert _judge(Engine(computes=TORCH_F16, declares=FLOAT32)).status == verdict.FAIL


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        (lambda y, i: {}, verdict.FAIL, "missing"),
        (lambda y, i: {"y": y, "z": y}, verdict.FAIL, "not asked for"),
        (lambda y, i: y.T, verdict.FAIL, "shape"),
        (lambda y, i: y * np.nan, verdict.FAIL, "not finite"),
        (lambda y, i: y.astype(np.int32), verdict.FAIL, "output 'y' is int32, expected floating-point numbers"),
        (lambda y, i: y > 0, verdict.FAIL, "output 'y' is bool, expected floating-point numbers"),
        (_stale, verdict.FAIL, "first at [3, 4]"),
        (_spoil, verdict.FAIL, "wrote into its inputs: x"),
        (_crash, verdict.ERROR, "segmentation fault at 0x0"),
        (_surprise, verdict.ERROR, "ZeroDivisionError: oh"),
        (lambda y, i: y * 1.0001, verdict.FAIL, "element"),
    ],
)
def test_every_fault_fails_and_says_so(change, status, says):
    result = _judge(Engine(change))
    assert result.status == status
    assert says in result.reason
    assert not result.conforms
    assert result.margin > 1


class Broken(Reference):
    """The reference in float32, with an error that no list has."""

    name = "broken"

    def __init__(self, wrong):
        super().__init__(FLOAT32)
        self._wrong = wrong

    def run(self, case, inputs):
        y = super().run(case, inputs)["y"].copy()
        return {"y": self._wrong(y)}


def _last_columns_unwritten(y):
    y[..., y.shape[-1] // 8 * 8 :] = 0
    return y


@pytest.mark.parametrize(
    ("wrong", "ending"),
    [
        (lambda y: 1.25 * y, "(the bound there: X); the reference agrees if the result is multiplied by 1.25"),
        (lambda y: y[::-1].copy(), "(the bound there: X); the reference agrees if x, axis 0: in reverse order"),
        (
            _last_columns_unwritten,
            "(the bound there: X); the reference agrees if nothing is computed: zeros, in the last 5 of 77 along "
            "axis 1 (channels), after the last whole block of 8",
        ),
        (lambda y: y + np.random.default_rng(3).standard_normal(y.shape), "(the bound there: X)"),
    ],
)
def test_an_error_that_nobody_knows_is_described(wrong, ending):
    result = _judge(Broken(wrong))
    assert result.status == verdict.FAIL
    assert result.reason.startswith("y: element [")
    assert re.sub(r"(there: )[\d.e-]+", r"\1X", result.reason).endswith(ending)


def test_a_constant_that_no_bug_lists_is_fitted():
    class Eps(Reference):
        name = "eps"

        def run(self, case, inputs):
            return super().run(msgspec.structs.replace(case, params={**case.params, "eps": 3e-5}), inputs)

    assert _judge(Eps(FLOAT32), _NORM).causes[0].startswith("eps is 3e-05, not")


def test_what_is_inside_the_bound_has_no_fitted_cause():
    """A gain that every element's bound allows, and all elements together do not have by rounding."""
    case = CASES["layer_norm/f32/bare-x2x33x320"]
    result = _judge(Engine(lambda y, i: y * np.float32(1 + 2.0**-19)), case)
    assert (result.status, result.criterion, result.causes) == (verdict.FAIL, "gain", ())
    assert result.outputs[0].engine.worst < 1 < result.margin
    assert "multiplied by" in _judge(Engine(lambda y, i: y * np.float32(1 + 2.0**-9)), case).causes[0]


def _eps_outside(inputs, eps):
    x = inputs["x"].values().astype(np.float64)
    y = x / (np.sqrt(np.mean(x**2, axis=-1, keepdims=True)) + eps)
    return (y * inputs["weight"].values() if "weight" in inputs else y).astype(np.float32)


@pytest.mark.parametrize("case", select("rms_norm/*"), ids=lambda case: case.name)
def test_a_wrong_step_is_named_where_no_element_misses_its_bound(case):
    result = _judge(Engine(lambda y, inputs: _eps_outside(inputs, case.params.get("eps", 1e-6))), case)
    assert result.status == verdict.PASS or result.causes == ("eps is added outside the root",)
    assert (result.status == verdict.PASS) == case.name.startswith(("rms_norm/f32/loud", "rms_norm/f32/large-x"))


def test_a_cause_of_one_case_is_tried_on_the_others_of_its_operation():
    """A gain that the bound allows has many possible causes; where another case has one of them, it is that one."""
    gain = Engine(lambda y, i: y * np.float32(1 + 2.0**-19))
    found = _judge(gain, CASES["layer_norm/f32/bare-x2x33x320"])
    cause = next(one for one in found.possible if "multiplied" in one)
    other = msgspec.structs.replace(found, case="layer_norm/f32/other", causes=(cause,), possible=())
    waiver = Waiver("", "issue 9", datetime.date.max, cases="layer_norm/f32/bare*", cause=cause)
    runner = _runner()
    (alone,) = with_shared_causes(runner, [found])
    assert alone is found
    first, second = with_shared_causes(runner, [found, other])
    assert first.causes == (cause,) and second is other
    assert first.reason.endswith(f"; consistent with {cause!r}, the cause of other failing cases of layer_norm")
    assert "nearest" not in first.reason
    unrelated = [msgspec.structs.replace(other, op="rms_norm"), msgspec.structs.replace(other, engine="torch")]
    assert with_shared_causes(runner, [found, *unrelated])[0] is found
    assert with_shared_causes(_runner([waiver]), [found, other])[0].status == verdict.WAIVED
    assert (first.looks, first.nearest, first.possible) == ((), None, ())


@pytest.mark.parametrize("looks", [(), ("y = 2 truth",)])
def test_a_cause_that_others_have_stands_for_what_was_found_alone_and_for_nothing_else(looks):
    known = Result("fake", "gelu/1", "gelu", verdict.FAIL, causes=("tanh for erf",))
    reason, cut = "y: rms is 5 of the bound; element [3, 4] is 1, truth 2", "the search for a cause was cut"
    alone = Result("fake", "gelu/2", "gelu", verdict.FAIL, reason=reason, possible=known.causes)
    if looks:
        alone = msgspec.structs.replace(alone, reason=f"{reason}; {looks[0]}; {cut}", looks=looks, cut=cut)
    waiver = Waiver("", "issue 9", datetime.date.max, cases="gelu/2", cause="eps*")
    first = with_shared_causes(_runner([waiver]), [alone, known])[0]
    assert (first.status, first.looks, first.cut) == (verdict.FAIL, (), "")
    assert first.reason.startswith(f"{reason}; consistent with 'tanh for erf'")


def test_a_cause_that_others_have_stands_instead_of_what_its_waiver_lacked():
    waiver = Waiver("", "issue 9", datetime.date.max, cases="gelu/2", cause="eps*")
    runner = _runner([waiver])
    known = Result("fake", "gelu/1", "gelu", verdict.FAIL, causes=("tanh for erf",))
    alone = with_waivers(
        runner, Result("fake", "gelu/2", "gelu", verdict.FAIL, reason="y: wrong", possible=known.causes)
    )
    assert "does not hold" in alone.reason
    (first, _) = with_shared_causes(runner, [alone, known])
    assert first.reason.count("does not hold") == 1 and first.reason.startswith("y: wrong; consistent with")


def test_an_answer_that_changes_is_waived_by_no_waiver_of_the_earlier_failure(monkeypatch):
    answered = []
    waivers = [Waiver("", "issue 9", datetime.date.max, cases="gelu/*", cause="eps*")]
    runner = _runner(waivers)._replace(measured=answered.append)
    result = msgspec.structs.replace(run(runner, [Engine()], [_GELU])[0], status=verdict.WAIVED, cut="cut")
    monkeypatch.setattr("refsd.golden.conform.asked_last", lambda *_: ("the answer changes", (CHANGING,)))
    again = after_asking_again(runner, Engine(), answered[0], result)  # type: ignore[arg-type]
    assert (again.status, again.causes, again.cut) == (verdict.FAIL, (CHANGING,), "")


def test_a_search_that_was_cut_says_so():
    class Slow(OperationJudge):
        def explain(self, standard, found, tap=""):
            assert list(TimeLimit(-1.0).within([1, 2])) == [] and list(TimeLimit(60.0).within([1])) == [1]
            return Explanation()

    truth = Reference(FLOAT64)
    runner = Runner(Judges(Slow()), lambda case: truth.run(case, case.realize()))
    (result,) = run(runner, [Engine(lambda y, i: y + 1)], [_GELU])
    assert result.cut == "the search for a cause was cut after -1 s" and result.reason.endswith(result.cut)


_FEW = [
    case for case in select("attention/f32/*") if case.inputs["q"].shape[1] < 40 and not case.params.get("scale")
][:14]


def _noise(y, inputs):
    return y + 0.1 * np.random.default_rng(y.size).standard_normal(y.shape).astype(np.float32)


def test_once_six_cases_have_told_nothing_others_are_searched_less():
    results = run(_runner(), [Engine(_noise)], _FEW)
    short = ["told nothing new" in result.cut for result in results]
    assert short == [i >= 6 for i in range(len(_FEW))] and not any(result.causes for result in results)
    assert all(result.cut in result.reason for result in results)


def test_what_explained_six_cases_is_sought_first_in_the_others(monkeypatch):
    asked, tried = [], unlisted._all
    monkeypatch.setattr(unlisted, "_all", lambda finders, y: asked.append([*finders]) or tried(finders, y))

    class Flat(Engine):
        """The scale of all heads' channels."""

        def run(self, case, inputs):
            q = inputs["q"].shape
            wrong = msgspec.structs.replace(case, params={**case.params, "scale": (q[2] * q[3]) ** -0.5})
            return super().run(wrong, inputs)

    results = run(_runner(), [Flat()], _FEW)
    assert len(asked[0]) > 15 and {"fitted"} <= {*asked[-1]} <= {"fitted", "generated"}
    assert all(any("scale is" in cause for cause in r.causes) for r in results if r.status == verdict.FAIL)


def test_a_limit_counts_by_its_clock_and_notes_what_it_is_told_to():
    now = [0.0]
    with noted_cuts() as cuts:
        for noted in (False, True):
            limit = TimeLimit(2.0, lambda: now[0], noted)
            assert [now.__setitem__(0, now[0] + 1) or one for one in limit.within("abcde")] == [*"abc"]
    assert cuts == [2.0]


def test_a_slow_processor_is_given_more_time(monkeypatch):
    assert 1 <= search_cuts.slowness() <= 4
    monkeypatch.setattr(search_cuts, "slowness", lambda: 3.0)
    limit, computing = TimeLimit(2.0), time.process_time
    monkeypatch.setattr(time, "process_time", lambda: computing() + 5)
    assert [*limit.within("ab")] == [*"ab"]
    monkeypatch.setattr(time, "process_time", lambda: computing() + 7)
    assert [*limit.within("ab")] == []


def test_a_limit_does_not_count_what_kernels_are_compiled_for(monkeypatch):
    limit = TimeLimit(2.0)
    computing = time.process_time
    monkeypatch.setattr(time, "process_time", lambda: computing() + 60)
    monkeypatch.setattr(_jit, "_compiled_for", _jit.compiled_for() + 60)
    assert [*limit.within("ab")] == [*"ab"]
    monkeypatch.setattr(time, "process_time", lambda: computing() + 90)
    assert [*limit.within("ab")] == []


def test_a_known_bug_needs_no_description():
    tanh = Engine(deviations=[_TANH])
    assert _judge(tanh).reason.endswith("; the reference agrees if tanh for erf")


@pytest.mark.jitted
def test_what_failing_cases_share_is_said_in_terminal_and_report(tmp_path, capsys):
    class Grouped(Reference):
        name = "grouped"

        def run(self, case, inputs):
            y = super().run(case, inputs)["y"]
            return {"y": y * (1.5 if inputs["q"].shape[2] != inputs["k"].shape[2] else 1)}

    cases = select("attention/*")
    results = run(_runner(), [Grouped(FLOAT32)], cases)
    shared = shared_traits(results, {case.name: case for case in cases})
    line = (
        f"grouped attention: all 6 failing cases, and none of {len(cases) - 6} passing, have H / G > 1 "
        "(q is [B, L, H, D], k is [B, J, G, D])"
    )
    assert shared == [line]
    outcome = Report("0", {"grouped": "1"}, [], results, [], shared)
    assert f"- {in_markdown(line)}\n" in markdown(outcome)
    print_report(outcome, tmp_path)
    assert f"\n{line}\n" in capsys.readouterr().out
    assert decode(encode(outcome)) == outcome


@pytest.mark.parametrize(
    ("eps", "cause"),
    [
        (lambda requested: 1e-5, "eps is 1e-5, whatever is asked"),
        (lambda requested: 10 * requested, "eps ten times too large"),
    ],
)
def test_a_constant_eps_and_a_wrong_factor_are_one_cause_each(eps, cause):
    class Wrong(Reference):
        name = "wrong"

        def run(self, case, inputs):
            params = {**case.params, "eps": eps(case.params.get("eps", 1e-6))}
            return super().run(msgspec.structs.replace(case, params=params), inputs)

    results = run(_runner(), [Wrong(FLOAT32)], select("rms_norm/*"))
    failed = [r for r in results if not r.conforms]
    assert len(failed) == 7 and all(cause in r.causes for r in failed)
    first, *others = groups(Report("0", {"wrong": "1"}, [], failed))
    assert first.title == cause and not others


def test_a_refused_case_is_no_failure():
    case = Case("silu/f16/x", "silu", {"x": Recipe((2, 2))})
    result = _judge(Engine(), case)
    assert (result.status, result.reason, result.conforms) == (verdict.REFUSED, "only float32 inputs", True)


def test_where_the_honest_run_is_no_witness_nobody_is_judged():
    class Far(OperationJudge):
        def measure(self, standard, found):
            return [measure("y", found["y"], standard.truth["y"], -standard.truth["y"], None, -1)]

    runner = _runner()._replace(judges=Judges(Far()))
    (result,) = run(runner, [Engine()], [_GELU])
    assert result.status == verdict.REFUSED
    assert "the honest run itself is 2 of the truth away" in result.reason


def _racing(rng):
    """Lose the work of some threads: some rows are halved, others at each request."""

    def change(y, inputs):
        return np.where(rng.random((len(y), 1)) < 0.3, y / 2, y)

    return change


@pytest.mark.parametrize("seed", range(3))
def test_an_engine_that_answers_otherwise_when_asked_again_has_that_cause_first(seed):
    result = _judge(Engine(_racing(np.random.default_rng(seed))))
    assert (result.status, result.causes) == (verdict.FAIL, (CHANGING,))
    assert re.match(
        r"not the same answer twice: \d+ of 2541 elements of y differ, first at \[\d+, \d+\]: ", result.reason
    )
    assert not result.looks and result.nearest is None


def test_an_engine_that_answers_right_or_fails_when_asked_again_is_no_deterministic_one_either():
    answers = iter([lambda y: y * 2, lambda y: y])
    assert _judge(Engine(lambda y, i: next(answers)(y))).causes == (CHANGING,)
    crash = iter([lambda y: y * 2, lambda y: _crash(y, None)])
    assert (
        "not the same answer twice: asked again, it fails: seg"
        in _judge(Engine(lambda y, i: next(crash)(y))).reason
    )


def test_a_race_that_spares_the_first_answer_shows_where_every_case_is_asked_twice():
    """Of two cases the second one's second answer differs."""

    def engine():
        times = iter(range(99))
        return Engine(lambda y, i: y + (next(times) == 3))

    cases = [_GELU, _NORM]
    assert [r.status for r in run(_runner(), [engine()], cases)] == [verdict.PASS] * 2
    first, second = run(_runner()._replace(twice=True), [engine()], cases)
    assert (first.status, second.status, second.causes) == (verdict.PASS, verdict.FAIL, (CHANGING,))
    assert second.reason.startswith("not the same answer twice: 3840 of 3840 elements of y differ, first at [0, ")
    assert second.margin == verdict.INFINITE


def test_without_a_search_for_causes_the_place_and_the_numbers_are_kept():
    kept = []
    runner = _runner()._replace(explains=False, keep=lambda result, answered: kept.append(answered) or result)
    (result,) = run(runner, [Engine(lambda y, i: y * 2)], [_GELU])
    assert (result.status, result.causes, result.place) == (verdict.FAIL, (), "y")
    assert "the reference agrees" not in result.reason and len(kept) == 1
    assert result.title == "gelu: wrong (element)", "what was not sought is not unexplained"


def test_last_bits_that_change_hide_no_cause():
    rng = np.random.default_rng(0)
    noisy = Engine(lambda y, i: 2.5 * y * (1 + rng.uniform(-1, 1, y.shape) * 2**-22))
    assert _judge(noisy).causes[0] == "the result is multiplied by 2.5"


def test_a_declared_deviation_is_named_and_is_no_pass():
    result = _judge(Engine(deviations=[_TANH], known=[_EPS, _TANH]))
    assert result.status == verdict.DEVIATES
    assert result.deviations == ("sdcpp/gelu-tanh",)
    assert not result.conforms
    assert "tanh" in result.reason


def test_a_deviation_of_a_constant_widens_nothing():
    assert _judge(Engine(deviations=[_EPS], known=[_EPS]), _NORM).status == verdict.DEVIATES
    off = Engine(lambda y, i: y * 1.001, deviations=[_EPS], known=[_EPS])
    assert _judge(off, _NORM).status == verdict.FAIL


def test_an_undeclared_deviation_fails():
    assert _judge(Engine(deviations=[_TANH])).status == verdict.FAIL


def test_a_declared_deviation_that_the_engine_has_not_is_not_held_against_it():
    assert _judge(Engine(known=[_TANH])).status == verdict.PASS


def test_a_waiver_turns_a_deviation_into_a_pass_until_it_expires():
    day = datetime.date(2027, 1, 1)
    waivers = [Waiver("sdcpp/gelu-tanh", "issue 7", day)]
    engine = Engine(deviations=[_TANH], known=[_TANH])
    waived = _judge(engine, waivers=waivers, today=day)
    assert (waived.status, waived.conforms) == (verdict.WAIVED, True)
    assert "issue 7" in waived.reason
    expired = _judge(engine, waivers=waivers, today=day + datetime.timedelta(1))
    assert (expired.status, expired.conforms) == (verdict.DEVIATES, False)
    assert "expired on 2027-01-01" in expired.reason


def test_a_waiver_of_cases_covers_failures_and_errors_until_it_expires():
    day = datetime.date(2027, 1, 1)
    waivers = [Waiver("", "issue 8", day, cases="gelu/*")]
    for change in (lambda y, i: y * 1.01, _crash):
        waived = _judge(Engine(change), waivers=waivers, today=day)
        assert (waived.status, waived.conforms) == (verdict.WAIVED, True)
        assert waived.reason.endswith("; the case waived until 2027-01-01: issue 8") and waived.margin > 1
        expired = _judge(Engine(change), waivers=waivers, today=day + datetime.timedelta(1))
        assert not expired.conforms and expired.reason.endswith("; the waiver of the case expired on 2027-01-01")


def test_what_an_answer_looks_like_and_the_nearest_bug_are_fields():
    noisy = _judge(
        Engine(lambda y, i: y + np.random.default_rng(0).standard_normal(y.shape) * 3e-5, deviations=[_TANH])
    )
    assert noisy.status == verdict.FAIL and not noisy.causes
    assert (noisy.nearest.cause, noisy.nearest.percent) == ("tanh for erf", 90)
    assert noisy.nearest.phrase in noisy.reason
    twice = _judge(Engine(lambda y, i: y * 2.5))
    assert twice.causes[0] == "the result is multiplied by 2.5"


def test_only_what_is_wanted_is_judged_and_only_what_fails_is_kept():
    kept = []

    def keep(result, answered):
        kept.append((result.case, answered.actual["y"].shape == answered.standard.truth["y"].shape, answered.taps))
        return msgspec.structs.replace(result, kept="here")

    runner = _runner()._replace(keep=keep, wanted=lambda engine, case: case == _GELU.name)
    (result,) = run(runner, [Engine(lambda y, i: y * 1.01)], [_GELU, _NORM])
    assert (result.kept, kept) == ("here", [(_GELU.name, True, {})])
    assert run(runner, [Engine()], [_GELU])[0].kept == "" and len(kept) == 1


def test_each_request_of_an_engine_has_a_wait_of_its_own():
    """The time that is told beside a limit is that of one answer."""
    events = []

    class Fusing(Engine):
        def run(self, case, inputs):
            events.append("run")
            return super().run(case, inputs)

        def run_tapped(self, case, inputs):
            y = super().run(case, inputs)
            events.append("tapped")
            return y, {"tap": y["y"]}

        def run_with(self, case, inputs, taps):
            return self.run(case, inputs)

    @contextlib.contextmanager
    def waiting(engine, case):
        events.append("(")
        yield
        events.append(")")

    run(_runner()._replace(waiting=waiting, taps="tap"), [Fusing()], [_GELU])
    assert "".join(events).startswith("(tapped)(run)")


def test_engines_share_the_honest_runs():
    asked = []

    class Counting(OperationJudge):
        def answer(self, case, inputs, arithmetic):
            asked.append(arithmetic.numerics.name)
            return super().answer(case, inputs, arithmetic)

    results = run(_runner()._replace(judges=Judges(Counting())), [Engine(), Engine()], [_GELU])
    assert [r.status for r in results] == [verdict.PASS] * 2
    assert asked == ["float32"]


def test_fewer_cases_than_expected_is_a_failure():
    results = [Result("gguf-py", "a", "dequantize", verdict.PASS), Result("x", "a", "silu", verdict.REFUSED)]
    gguf, other = {"gguf-py": ["gguf-py"]}, {"x:/path": ["x", "x-flash"]}
    assert shortages(gguf, results, None, whole=False) == []
    assert shortages(gguf, results, None, whole=True) == [
        f"gguf-py ran 1 case, expected at least {FLOORS['gguf-py']}"
    ]
    assert shortages(gguf, results, 2, whole=False) == ["gguf-py ran 1 case, expected at least 2"]
    assert shortages(gguf, results, 1, whole=True) == []
    assert shortages(other, results, None, whole=False) == ["x:/path ran 0 cases, expected at least 1"]
    ran = [Result("x-flash", "a", "silu", verdict.FAIL)]
    assert shortages(other, ran, None, whole=False) == []
    assert shortages({"all": ["gguf-py", "x"]}, results, None, whole=False) == []


def test_a_declared_operation_without_a_judged_case_is_told():
    class Declaring(Engine):
        name, declared = "x", ("embedding", "silu", "roll")

    class Plain(Engine):
        name = "y"

    def refused(engine, op, why, n=1):
        return [
            Result(engine, f"{op}/{i}", op, verdict.REFUSED, reason=f"{engine} {why} in {op}") for i in range(n)
        ]

    results = [
        *refused("x", "embedding", "takes no i32", 2),
        *refused("x", "silu", "takes no f16", 2),
        Result("x", "silu/7", "silu", verdict.PASS),
        *refused("x", "roll", "takes no f32"),
        *refused("x", "geglu", "takes no f64"),
        *refused("y", "embedding", "takes no i32", 2),
    ]
    failing, telling = unjudged([Declaring(), Plain()], results, {"embedding", "silu"}, {"geglu"})
    assert failing == ["x: embedding is declared, but none of its 2 cases was judged: takes no i32"]
    assert telling == [
        "x: roll is declared, but its case was not judged: takes no f32",
        "x: geglu is asked for, but its case was not judged: takes no f64",
    ]


@pytest.fixture(scope="module")
def report():
    engines = [Engine(), Engine(lambda y, i: y * 1.01)]
    engines[1].name = "gain"
    results = run(_runner(), engines, [_GELU, CASES["conv2d/f16/latent-n2-c4-k40-h12-w9"], _NORM])
    return Report("0", {"fake": "1", "gain": "2"}, [], results, ["gain ran 2 cases, expected at least 9"])


def test_a_report_survives_json_and_can_be_judged_again(report):
    again = decode(encode(report))
    assert again == report
    for result in again.results:
        if result.outputs:
            assert verdict.judge(result.outputs).passed == (result.status == verdict.PASS)
    with pytest.raises(BadInput):
        decode(b'{"refsd": 1}')


def test_junit_counts(report):
    root = ElementTree.fromstring(junit(report))
    suites = {s.get("name"): s for s in root}
    assert suites["gain 2"].get("failures") == "2"
    assert suites["gain 2"].get("skipped") == "1"
    assert suites["fake 1"].get("failures") == "0"
    assert len(root.findall(".//testcase")) == 7
    assert "expected at least 9" in root.findall(".//failure")[-1].get("message")


def test_the_page_names_what_fails(report):
    text = markdown(report)
    assert "Does not conform" in text
    assert "| gain | gelu/f32/bend-x33x77 | float32 | fail |" in text
    assert "only float32 inputs" in text
    assert table(report, [*report.engines]).row_count == 2


@pytest.mark.parametrize(
    ("margin", "text"),
    [(0.0, "0.00"), (0.9999, "0.99"), (1.0001, "1.01"), (31.4, "31.4"), (verdict.INFINITE, "inf")],
)
def test_a_pass_never_reads_as_one(margin, text):
    assert margin_text(margin) == text


def test_junit_has_no_characters_that_xml_forbids():
    odd = Report("0", {"e": "1"}, [], [Result("e", "c", "op", verdict.ERROR, reason="bell \x07 <&>")])
    assert ElementTree.fromstring(junit(odd)).find(".//error").get("message") == r"bell \x07 <&>"


def test_cases_are_chosen_by_glob():
    assert {c.op for c in select("conv2d/*")} == {"conv2d"}
    assert all(not c.name.startswith("full/") for c in select())
    with pytest.raises(BadInput, match="no case matches"):
        select("nothing/*")


def test_engines_are_found_by_name():
    assert registry.find("gguf-py")[0].engine is not None
    with pytest.raises(BadInput, match="unknown engine 'gmgl'"):
        registry.find("gmgl")


def test_many_engines_have_a_line_each():
    def result(engine, status, margin):
        return Result(engine, "silu/x", "silu", status, margin=margin)

    engines = {f"engine{i}": "1" for i in range(7)}
    results = [result(name, verdict.FAIL if name == "engine3" else verdict.PASS, 2.0) for name in engines]
    lines = summary(Report("0", engines, [], results))
    assert lines.row_count == 7
    assert "1 fail (2" in list(lines.columns[1].cells)[3]


def _columns_lost(block):
    def change(y, inputs):
        y = y.copy()
        y[..., y.shape[-1] // block * block :] = 0
        return y

    return change


def _rows_unread(block):
    def change(y, inputs):
        """Rows that are not read are normalised as zeros: only the bias is left."""
        rows = y.reshape(-1, y.shape[-1]).copy()
        rows[len(rows) // block * block :] = inputs["bias"].values()
        return rows.reshape(y.shape)

    return change


@pytest.mark.parametrize(
    ("op", "change", "kind"),
    [
        (
            "linear",
            _columns_lost(64),
            "nothing is computed: zeros, in the slices of an axis after the last whole block of 64",
        ),
        (
            "linear",
            _columns_lost(4),
            "nothing is computed: zeros, in the slices of an axis after the last whole block of 4",
        ),
        ("layer_norm", _rows_unread(16), "x: rows after the last whole block of 16, not read"),
    ],
)
def test_a_tail_that_is_all_of_some_cases_is_the_cause_of_all(op, change, kind):
    """A case of fewer rows than a block has shows zeros; others show why."""
    cases = [case for case in CASES.values() if case.name.startswith(f"{op}/f32/") and "bias" in case.inputs]
    results = with_shared_causes(_runner(), run(_runner(), [Engine(change)], cases))
    failing = [r for r in results if r.status == verdict.FAIL]
    assert len(failing) >= 3
    assert [r.case for r in failing if not any(kind in kinds(cause) for cause in r.causes)] == []
    (group,) = groups(Report("1", {"fake": "1"}, [], results))
    assert group.title == kind and len(group.results) == len(failing)
    # The case that is shown, and reduced next, is one that tells a tail from all.
    whole = [any(is_all(cause) for cause in r.causes) for r in group.results]
    assert whole == sorted(whole) and not whole[0]
