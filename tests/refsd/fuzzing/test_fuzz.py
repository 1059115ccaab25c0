"""Random cases are drawn from the pages, the same for a seed; what an engine fails is found and reduced."""

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from injection import Bug, Injected, wrong_operation
from typer.testing import CliRunner

from refsd.cli import app
from refsd.cli.find_case import find_case
from refsd.cli.fuzz import _print as show
from refsd.fuzzing import fuzz
from refsd.fuzzing.draw import draw, rounds
from refsd.golden import dimensions
from refsd.golden.case import Case
from refsd.golden.engine import EngineDied, EngineFailure
from refsd.golden.operations import OPERATIONS
from refsd.golden.recipe import Recipe, realize
from refsd.golden.repeated_requests import LEFT_OVER
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32
from refsd.requests.isolated_engine import IsolatedEngine
from refsd.requests.random_case import LAYOUTS, lay_out, name_of, parse
from refsd.shrinking import folder
from refsd.shrinking.failure import runner_of

EXAMPLE = Path(__file__).parents[3] / "examples" / "exec" / "engine.py"
ENGINE = f"exec:{sys.executable} {EXAMPLE}"
MANY = 40


@pytest.fixture(autouse=True)
def without_deadline(monkeypatch):
    """A find is reduced to the end, however slow the machine."""
    monkeypatch.setattr(fuzz, "_SECONDS", 3600.0)


@pytest.mark.parametrize("op", OPERATIONS)
def test_what_is_drawn_is_a_case_of_its_page(op):
    page = OPERATIONS[op]
    cases = [draw(7, op, number) for number in range(8)]
    for case in cases:
        shapes = {name: tensor.shape for name, tensor in case.realize().items()}
        dimensions.check(page, shapes, page.complete(case.inputs, case.params))
    assert len({str(case.inputs) + str(case.params) for case in cases}) == 8
    assert draw(7, op, 3) == cases[3] and draw(8, op, 3).inputs != cases[3].inputs


def test_sizes_at_the_limits_all_data_sets_and_layouts_occur():
    cases = [draw(1, op, number) for op in ("linear", "layer_norm", "conv2d", "add") for number in range(MANY)]
    sizes = {size for case in cases for recipe in case.inputs.values() for size in recipe.shape}
    assert {1, 2, 3, 31, 32, 33, 255, 256, 257} <= sizes and sizes & {1023, 1024, 1025}
    data = {recipe.data for case in cases for recipe in case.inputs.values()}
    assert {"bell", "outliers", "wide", "tiny", "shifted", "integers", "constant", "prefix"} <= data
    assert {case.layout for case in cases} == LAYOUTS.keys()
    params = {str(case.params) for case in cases if case.op == "conv2d"}
    assert len(params) > 10


def test_a_name_is_a_case():
    assert parse(name_of(7, "conv2d", 12)) == (7, "conv2d", 12) and parse("conv2d/f32/x") is None
    with pytest.raises(BadInput, match="did you mean"):
        find_case("fuzz/7/conv2/1")


def test_every_operation_has_its_turn_in_a_new_order():
    first, second = (list(itertools.islice(rounds(seed, "abcd"), 8)) for seed in (1, 2))
    assert {op for op, _ in first[:4]} == {*"abcd"} and {number for _, number in first[4:]} == {1}
    assert first != second and first == list(itertools.islice(rounds(1, "abcd"), 8))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4, 5)])
def test_a_layout_moves_no_number(layout, shape):
    before = realize(Recipe(shape), "x")
    after = lay_out(before, layout).data
    assert np.array_equal(after, before.data) and after.shape == shape
    if layout != "contiguous" and len(shape) == 4:
        assert not after.flags.c_contiguous


def engine(bug: Bug) -> IsolatedEngine:
    return IsolatedEngine(Injected(bug, FLOAT32, None), "injected", 10.0)


def fuzzed(bug: Bug, ops, count, seed=7):
    fuzzer = fuzz.Fuzzer(engine(bug), runner_of())
    for case in fuzz.cases(seed, ops, count, 0):
        fuzzer.try_case(case)
    return fuzzer


@pytest.mark.jitted
def test_an_honest_engine_is_not_accused():
    fuzzer = fuzzed(Bug(), OPERATIONS, 2 * len(OPERATIONS))
    assert [(find.case, find.reason) for find in fuzzer.finds] == []
    assert len(fuzzer.asked) == len(OPERATIONS)


def _serial(x):
    return np.add.accumulate(np.asarray(x, np.float32), axis=-1)[..., -1:]


def _rows(x, weight, bias, eps, centred=True):
    n = np.float32(x.shape[-1])
    x = np.asarray(x, np.float32)
    c = x - _serial(x) / n if centred else x
    y = c / np.sqrt(_serial(c * c) / n + np.float32(eps))
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _groups(self, right, x, w, b, g=32, eps=1e-5):
    along = (-1, *[1] * (x.ndim - 2))
    y = _rows(np.reshape(x, (len(x), g, -1)), None, None, eps).reshape(x.shape)
    return y * np.reshape(w, along) + np.reshape(b, along)


def _softmax(self, right, x, scale=1.0, mask=None, sinks=None):
    s = np.asarray(x, np.float32) * np.float32(scale) + (0 if mask is None else np.asarray(mask, np.float32))
    top = s.max(axis=-1, keepdims=True)
    sink = -np.inf if sinks is None else np.asarray(sinks, np.float32)[:, None, None]
    top = np.maximum(top, sink)
    top = np.where(np.isneginf(top), np.float32(0), top)
    e = np.exp(s - top)
    total = _serial(e) + np.exp(sink - top)
    return np.where(total > 0, e / np.where(total > 0, total, 1), 0).astype(np.float32)


def _linear(self, right, x, w, b=None, weight_type="f32"):
    y = 0
    for k in range(x.shape[-1]):
        y = y + x[..., k : k + 1] * w[:, k]
    return (y if b is None else y + b).astype(np.float32)


# Sums in float32, one number after another.
SERIAL = wrong_operation(
    layer_norm=lambda self, right, x, w=None, b=None, eps=1e-5: _rows(x, w, b, eps),
    adaptive_layer_norm=lambda self, right, x, shift, scale, eps=1e-6: (
        _rows(x, None, None, eps) * (1 + scale[:, None]) + shift[:, None]
    ),
    rms_norm=lambda self, right, x, w, eps=1e-6: _rows(x, w, None, eps, False),
    l2_norm=lambda self, right, x, eps=1e-12: x / np.maximum(np.sqrt(_serial(x * x)), np.float32(eps)),
    group_norm=_groups,
    group_norm_silu=lambda self, right, x, w, b, g=32, eps=1e-5: self.silu(_groups(self, None, x, w, b, g, eps)),
    softmax=_softmax,
    linear=_linear,
)
SUMMING = (
    "layer_norm",
    "adaptive_layer_norm",
    "rms_norm",
    "l2_norm",
    "group_norm",
    "group_norm_silu",
    "softmax",
    "linear",
)


@pytest.mark.jitted
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5, 8])
def test_an_engine_that_sums_one_after_another_is_honest(seed):
    fuzzer = fuzzed(SERIAL, SUMMING, 60 * len(SUMMING), seed)
    assert [(find.case, find.title, find.reason) for find in fuzzer.finds] == []


def test_a_bug_is_found_reduced_and_counted():
    def one_group(self, right, x, w, b, g, eps):
        return right(x, w, b, 1, eps)

    fuzzer = fuzzed(wrong_operation(group_norm=one_group), ["group_norm", "silu"], 12)
    (find,) = fuzzer.finds
    assert find.kind == "wrong" and find.causes[0] == "one group" and find.times > 2
    assert find.shapes == {"x": [1, 2, 1, 1], "weight": [2], "bias": [2]} and find.params["num_groups"] == 2
    again = fuzzed(wrong_operation(group_norm=one_group), ["group_norm", "silu"], 12)
    assert again.finds == fuzzer.finds and again.asked == fuzzer.asked


def test_two_bugs_are_two_finds():
    bug = wrong_operation(
        silu=lambda self, right, x: right(x) * (1 if x.shape[-1] % 2 else 3),
        tanh=lambda self, right, x: x,
    )
    answer = Bug(bug.arithmetic, lambda case, i, y: {"y": np.full_like(y["y"], np.nan)} if case.op == "relu" else y)
    finds = fuzzed(answer, ["silu", "relu", "add"], 30).finds
    assert {find.op for find in finds} == {"silu", "relu"}


def test_one_bug_is_one_find_wherever_and_however_large_it_is_in_each_case():
    def tail(self, right, x):
        y = right(x)
        y.reshape(-1)[y.size // 8 * 8 :] = 0
        return y

    fuzzer = fuzzed(wrong_operation(silu=tail), ["silu"], 24)
    named = [find for find in fuzzer.finds if find.causes]
    assert len(named) == 1 and named[0].times > 3 and len(fuzzer.finds) <= 2


def test_what_earlier_requests_left_is_no_wrong_number():
    """A process that answers wrongly after its first request, and rightly when it is asked alone."""
    asked_before = []

    def stale(case, inputs, y):
        asked_before.append(case.name)
        return y if len(asked_before) == 1 else {"y": y["y"] + 1}

    asked, honest = engine(Bug(answer=stale)), Injected(Bug(), FLOAT32, None)
    asked.engine.run_alone = lambda case, inputs, tapped: (honest.run(case, inputs), {})
    fuzzer = fuzz.Fuzzer(asked, runner_of())
    cases = list(fuzz.cases(7, ["silu"], 5, 0))
    for case in cases:
        fuzzer.try_case(case)
    (find,) = fuzzer.finds
    assert (find.causes, find.title, find.times) == ([LEFT_OVER], LEFT_OVER, len(cases) - 1)
    assert find.reason.endswith(f"asked before it: {cases[0].name}")
    assert find.shapes == {"x": list(cases[1].inputs["x"].shape)}, "it is not reduced"


def raising(error):
    def answer(case: Case, inputs, y):
        if inputs["x"].shape[-1] > 16:
            raise error
        return y

    return Bug(answer=answer)


def test_a_crash_is_a_find_and_a_refusal_is_none():
    (find,) = fuzzed(raising(EngineDied("ended by SIGSEGV: it said nothing")), ["silu"], 12).finds
    assert find.kind == "crash" and find.shapes == {"x": [17]}
    fuzzer = fuzzed(raising(EngineFailure("no rows beyond 16")), ["silu"], 12)
    assert fuzzer.finds == [] and fuzzer.refused["no rows beyond 16"] > 2 and 0 < fuzzer.asked["silu"] < 12


def test_a_layout_that_matters_is_in_the_folder(tmp_path):
    """An engine that reads a tensor as it lies in memory."""

    def as_it_lies(case, inputs, y):
        x = inputs["x"].data
        return y if x.flags.c_contiguous else {"y": y["y"][..., ::-1].copy()}

    asked = engine(Bug(answer=as_it_lies))
    asked.any_layout = asked.engine.any_layout = True
    fuzzer = fuzz.Fuzzer(asked, runner_of(), lambda shrunk, n: str(write(tmp_path / str(n), shrunk, asked)))
    for case in fuzz.cases(7, ["silu"], 12, 0):
        fuzzer.try_case(case)
    find = next(find for find in fuzzer.finds if find.layout != "contiguous")
    case = folder.read(Path(find.folder))
    assert case.layout == find.layout and f"`{find.layout}`" in (Path(find.folder) / folder.ISSUE).read_text()
    assert not folder.judge(asked.engine, case).conforms
    plain = Injected(Bug(), FLOAT32, None)
    assert folder.judge(plain, case).conforms


def write(path, shrunk, asked):
    folder.write(path, shrunk, asked, "injected")
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["fuzz", *map(str, arguments)])


def test_the_command_writes_what_it_finds(tmp_path):
    out = tmp_path / "out"
    done = run(f"{ENGINE} --bug", "--count", 6, "--seed", 7, "--ops", "layer_norm", "-o", out, "--json")
    assert done.exit_code == 1, done.output
    said = json.loads(done.stdout)
    find = said["finds"][0]
    assert said["seed"] == 7 and said["asked"]["layer_norm"] + sum(said["refused"].values()) == 6
    assert json.loads((out / "fuzz.json").read_text()) == said and "eps" in find["causes"][0]
    assert folder.read(Path(find["folder"])).op == "layer_norm"
    once = run(f"{ENGINE} --bug", "--only", find["case"], "-o", out)
    assert once.exit_code == 1 and find["case"] in once.stdout and "1 case of 1 operation" in once.stdout
    assert run(ENGINE, "--only", find["case"], "-o", out).exit_code == 0 and not out.exists()


def test_an_interrupt_leaves_what_was_found(tmp_path, monkeypatch):
    tried = fuzz.Fuzzer.try_case

    def interrupted(self, case):
        if self.finds:
            raise KeyboardInterrupt
        return tried(self, case)

    monkeypatch.setattr(fuzz.Fuzzer, "try_case", interrupted)
    done = run(f"{ENGINE} --bug", "--minutes", 5, "--ops", "layer_norm", "-o", tmp_path / "out")
    assert done.exit_code == 130 and "; interrupted" in done.stdout
    assert json.loads((tmp_path / "out" / "fuzz.json").read_text())["partial"] == "interrupted"


def test_the_time_ends_it(tmp_path):
    done = run(ENGINE, "--minutes", 0, "-o", tmp_path / "out", "--timeout", 5)
    assert done.exit_code == 0 and "nothing found" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--ops", "layer"), "--ops layer: no operation matches (did you mean"),
        (("--ops", "silu,layer"), "--ops layer: no operation matches (did you mean"),
        (("--ops", "rope"), "takes no case of these operations"),
        (("--only", "layer_norm/f32/plain"), "expected fuzz/SEED/OPERATION/NUMBER"),
        (("--only", "fuzz/1/rope/0"), "numpy-example has no rope"),
    ],
)
def test_bad_usage_is_one_line(arguments, says, tmp_path):
    done = run(ENGINE, *arguments, "-o", tmp_path / "out")
    assert isinstance(done.exception, BadInput) and says in str(done.exception)


@pytest.mark.parametrize("arguments", [("--minutes", "-1"), ("--count", "0"), ("--seed", "x")])
def test_bad_numbers_are_bad_usage(arguments):
    assert run(ENGINE, *arguments).exit_code == 2


def test_a_folder_of_others_is_not_replaced(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    done = run(ENGINE, "--count", 1, "-o", tmp_path)
    assert isinstance(done.exception, BadInput) and "not written by refsd" in str(done.exception)


def test_the_last_line_says_why_cases_were_refused(capsys):
    refused = {"mine takes no f64": 3, "mine takes no q8_0": 1500, "a": 2, "b": 2, "mine has no mask": 9}
    show(fuzz.Outcome("1", "mine", "2", 1, {"silu": 4}, refused, 0, [], 2.0), False)
    why = "; 1516 refused: takes no q8_0 (1500), has no mask (9), takes no f64 (3), a (2), 1 other reason\n"
    assert why in capsys.readouterr().out
