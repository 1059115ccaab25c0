"""Two engines on cases: who is right, where they part, why."""

import json
import sys

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from refsd.cases import CASES
from refsd.cli import app
from refsd.disagreement.cases import Disagreement, compare_case, disagree
from refsd.engines.dump.engine import find
from refsd.engines.reference import Reference
from refsd.golden.conform import Runner
from refsd.golden.engine import EngineFailure
from refsd.judges import judges
from refsd.judges.model import ModelJudge
from refsd.module import Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, FLOAT64, TORCH_F16
from refsd.weights import recipes

_NORM = CASES["layer_norm/f32/tiny-x33x320"]
_CLIP = CASES["clip-l/clip/ended"]


class Engine:
    """The reference in `numerics`, its answer changed."""

    version = "1"

    def __init__(self, name, change=lambda y: y, numerics=FLOAT32, refused=(), known=()):
        self.name, self._change, self._refused, self._known = name, change, refused, known
        self._reference = Reference(numerics)

    def refuses(self, case):
        return f"{self.name} has no {case.op}" if case.op in self._refused else None

    def numerics(self, case):
        return self._reference.numerics(case)

    def deviations(self, case):
        return self._known

    def run(self, case, inputs):
        return {name: self._change(y) for name, y in self._reference.run(case, inputs).items()}


@pytest.fixture(scope="module")
def runner():
    truth = Reference(FLOAT64)
    return Runner(judges(), lambda case: truth.run(case, case.realize()))


def _twice(y):
    return 2 * y


def test_the_one_that_errs_is_wrong(runner):
    case = compare_case(runner, Engine("a"), Engine("b", _twice), _NORM)
    assert (case.outcome, case.right, case.wrong, case.alike) == ("one is wrong", ["a"], ["b"], False)
    assert case.distance == pytest.approx(1, rel=1e-5) and case.explained < 1e-5
    assert case.parting.at == "y" and case.parting.own["b"] > 0.99 > 1e-5 > case.parting.allowed["b"]
    assert case.parting.own["a"] < case.parting.allowed["a"]
    assert "the result is multiplied by 2" in case.sides[1].reason


def test_which_argument_it_is_makes_no_difference(runner):
    case = compare_case(runner, Engine("a", _twice), Engine("b"), _NORM)
    assert (case.right, case.wrong) == (["b"], ["a"])


def test_two_precisions_that_differ_both_conform(runner):
    case = compare_case(runner, Engine("a"), Engine("b", numerics=TORCH_F16), _NORM)
    assert case.outcome == "both conform" and case.parting is None
    assert 1e-5 < case.distance < case.explained < 1e-2


@pytest.mark.parametrize(("wrong", "alike"), [(_twice, True), (lambda y: -y, False)])
def test_both_are_wrong_alike_or_each_in_its_own_way(runner, wrong, alike):
    case = compare_case(runner, Engine("a", _twice), Engine("b", wrong), _NORM)
    assert (case.outcome, case.alike) == ("both are wrong", alike)


def test_an_engine_that_crashes_is_wrong(runner):
    def crash(y):
        raise EngineFailure("out of luck")

    case = compare_case(runner, Engine("a"), Engine("b", crash), _NORM)
    assert (case.right, case.wrong, case.distance, case.parting) == (["a"], ["b"], None, None)
    assert case.sides[1].reason == "out of luck"


def test_missing_misshapen_and_endless_answers_have_no_distance(runner):
    for change in (lambda y: y[:-1], lambda y: np.full_like(y, np.nan)):
        case = compare_case(runner, Engine("a"), Engine("b", change), _NORM)
        assert (case.wrong, case.distance) == (["b"], None)


def test_what_one_refuses_neither_is_asked(runner):
    def never(y):
        raise AssertionError

    case = compare_case(runner, Engine("a", never), Engine("b", refused=("layer_norm",)), _NORM)
    assert case.outcome == "not compared" and case.sides[1].reason == "b has no layer_norm"
    whole = disagree(runner, Engine("a"), Engine("b", refused=("layer_norm",)), [_NORM], "0")
    assert whole.agree and whole.compared == []


def test_a_declared_deviation_is_no_agreement(runner):
    case = CASES["gelu/f32/bend-x33x77"]
    known = (DEVIATIONS["sdcpp/gelu-tanh"],)
    other = Engine("b", known=known)
    other._reference = Reference(FLOAT32, known)
    compared = compare_case(runner, Engine("a"), other, case)
    assert compared.wrong == ["b"] and compared.sides[1].deviations == ("sdcpp/gelu-tanh",)


def test_json_holds_all_of_it(runner):
    whole = disagree(runner, Engine("a"), Engine("b", _twice), [_NORM], "0")
    assert not whole.agree
    assert msgspec.json.decode(msgspec.json.encode(whole), type=Disagreement) == whole


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _dump(path, tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: np.ascontiguousarray(y) for name, y in tensors.items()}, path)


def _call(*arguments):
    result = CliRunner().invoke(app, ["disagree", *map(str, arguments)], catch_exceptions=True)
    if isinstance(result.exception, BadInput):
        return 2, str(result.exception)
    return result.exit_code, result.stdout


@pytest.mark.smoke
def test_dumps_case_by_case(folder):
    names = [name for name in CASES if name.startswith("silu/")][:2]
    for name in names:
        y = Reference(FLOAT32).run(CASES[name], CASES[name].realize())["y"].astype(np.float32)
        _dump(folder / "one" / f"{name}.safetensors", {"any": y})
        _dump(folder / "two" / f"{name}.safetensors", {"y": -y if name == names[0] else y})
    code, said = _call("dump:one", "dump:two", "silu/*")
    assert code == 1 and f"{names[0]}: one is right" in said and "two is wrong" in said
    assert "two is wrong in 1 of 2 cases: silu: " in said and "one conforms in all of 2 cases" in said
    code, said = _call("dump:one", f"dump:two/{names[1]}.safetensors", names[1])
    assert code == 0 and "both conform in 1 case, 1 with the same bits" in said
    code, said = _call("dump:one", "dump:two", names[0], "--json")
    assert code == 1 and json.loads(said)["cases"][0]["wrong"] == ["two"]


def test_bad_input_is_one_line(folder):
    (folder / "a.safetensors").write_bytes(b"none")
    for arguments, said in (
        (("dump:nowhere", "refsd"), "nowhere: no such file or folder"),
        (("dump:a.safetensors", "refsd", "silu/*"), "a is a dump of one case, and 3 are asked for: name the case"),
        (("refsd", "tourch"), "unknown engine 'tourch'"),
        (("refsd:f31", "refsd"), "no such numerics profile"),
        (("refsd", "refsd", "sillu/*"), "no case matches 'sillu/*'"),
        (("gguf-py-2", "refsd"), "gguf-py"),
        (("dump:.", "refsd", "silu/*"), "no case that both take"),
    ):
        code, line = _call(*arguments)
        assert code == 2 and said in line and "\n" not in line, line
    code, said = _call("dump:a.safetensors", "refsd", next(n for n in CASES if n.startswith("silu/")))
    assert code == 1 and "a.safetensors" in said  # an engine that cannot answer does not conform


def test_two_of_one_name_are_told_apart(folder):
    program = folder / "engine.py"
    program.write_text(_PROGRAM)
    code, said = _call(f"exec:{sys.executable} {program}", f"exec:{sys.executable} {program} wrong", "silu/*")
    assert code == 1 and "same (A) is right" in said and "same (B) is wrong" in said


_PROGRAM = """
import json, sys
import numpy as np
from safetensors.numpy import load_file, save_file
request = json.loads(sys.stdin.readline())
if request["request"] == "describe":
    described = {"protocol": 1, "name": "same", "version": "1", "ops": {"silu": {"types": ["f32"]}}}
    open(request["output"], "w").write(json.dumps(described))
else:
    x = load_file(request["inputs"])["x"].astype("f8")
    y = x / (1 + np.exp(-x)) * (2 if "wrong" in sys.argv else 1)
    save_file({"y": y.astype("f4")}, request["output"])
"""


@pytest.mark.jitted
def test_a_model_is_followed_tap_by_tap(folder, monkeypatch):
    """An eps ten times too small in the second layer's first norm: right before it, and told there."""
    files = recipes.make(_CLIP.model, folder / "clip.safetensors", "ldm")
    kind = ModelJudge(lambda model, layout: files)

    class SmallEps(Arithmetic):
        calls = 0

        def layer_norm(self, x, weight=None, bias=None, eps=1e-5):
            self.calls += 1
            return super().layer_norm(x, weight, bias, eps * (0.1 if self.calls == 3 else 1))

    for name, arithmetic in {"right": Arithmetic(FLOAT32), "wrong": SmallEps(FLOAT32)}.items():
        taps = Taps(ops=True)
        outputs = kind.tapped(_CLIP, _CLIP.realize(), arithmetic, taps)
        _dump(folder / f"{name}.safetensors", {**taps, **outputs})
        foreign = {f"h.{i}": y.reshape(-1, y.shape[-1]) for i, y in enumerate(taps.values())}
        _dump(folder / f"foreign {name}.safetensors", {**foreign, **outputs})
        part = {tap: y for tap, y in taps.items() if "layers.1" in tap}
        _dump(folder / f"part of {name}.safetensors", part)
    truth = kind.answer(_CLIP, _CLIP.realize(), Arithmetic(FLOAT64))

    def compared(*names):
        a, b = (find(f"{folder}/{name}.safetensors", kind.model_files)[0].engine for name in names)
        return compare_case(Runner(judges(kind.model_files), lambda case: truth), a, b, _CLIP)

    case = compared("right", "wrong")
    assert case.wrong == ["wrong"] and case.parting.before > 5
    assert case.parting.at == "text_model.encoder.layers.1.layer_norm1"
    assert case.parting.own["wrong"] > case.parting.allowed["wrong"]
    assert case.parting.own["right"] < case.parting.allowed["right"]
    assert case.sides[1].causes[0] == "eps ten times too small"
    # Other names and shapes are told by what is in them, in the wrong one too.
    foreign = compared("right", "foreign wrong")
    assert foreign.wrong == ["foreign wrong"] and foreign.parting.at == case.parting.at
    assert compared("right", "foreign right").outcome == "both conform"
    # Names that are told by nothing are left out; those that the user gives are judged.
    own = dict(load_file(folder / "right.safetensors"))
    noise = np.random.default_rng(1).standard_normal((2, 9)).astype(np.float32)
    own |= {"own": 9 * own.pop(case.parting.at), "noise": noise}
    _dump(folder / "own.safetensors", own)
    assert compared("right", "own").outcome == "both conform"
    engine = find(f"{folder}/own.safetensors", kind.model_files)[0].engine
    engine.names = {"own": case.parting.at}
    wrong = Runner(judges(kind.model_files), lambda case: truth)
    given = compare_case(wrong, find(f"{folder}/right.safetensors", kind.model_files)[0].engine, engine, _CLIP)
    assert given.parting.at == case.parting.at and engine.unknown == ["noise"]
    # A part of the taps, without the outputs, is judged as far as it goes.
    assert compared("right", "part of right").outcome == "both conform"
    case = compared("right", "part of wrong")
    assert case.wrong == ["part of wrong"] and case.distance is None
    assert case.parting.at == "text_model.encoder.layers.1.layer_norm1"
    # A wrong tap under a foreign name is near none of the reference's, so without the outputs the rest is no pass.
    part = {f"h.{tap}": y for tap, y in load_file(folder / "part of right.safetensors").items()}
    _dump(folder / "foreign part.safetensors", {**part, "scratch": noise})
    assert compared("right", "foreign part").outcome == "both conform"
    at = "text_model.encoder.layers.1.mlp.fc1"
    part[f"h.{at}"] = np.flip(part[f"h.{at}"], -1).copy() + 1
    _dump(folder / "foreign part.safetensors", part)
    side = compared("right", "foreign part").sides[1]
    n = len(part)
    assert side.reason.startswith(f"{n - 1} of {n} tensors judged, 1 unknown (h.{at}), whose names")
    _dump(folder / "foreign part.safetensors", {**part, **{name: own[name] for name in truth}})
    assert compared("right", "foreign part").outcome == "both conform"
    # A cause is sought in what is there: without outputs, whole models with known bugs are not compared.
    _dump(folder / "part.safetensors", {tap.removeprefix("h."): y for tap, y in part.items()})
    side = compared("right", "part").sides[1]
    assert side.place == at and "failed" not in side.reason
