"""A dump of taps: honest ones are right, and a bug in one operation is placed at that operation."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.cases import CASES
from refsd.causes.model.following import nearest_order
from refsd.cli import app
from refsd.engines.reference import Reference
from refsd.golden.examination import Examination
from refsd.golden.explanation import Explanation
from refsd.golden.judge import Trace
from refsd.golden.taps import measure_taps
from refsd.golden.verdict import judge, judge_output
from refsd.judges.comparison import Comparison, _of_other_layers, with_case, with_files
from refsd.judges.model import ModelJudge
from refsd.module import Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, FLOAT64, GGML_CPU, TORCH_BF16, TORCH_F16, TORCH_F32
from refsd.reports.comparison_lines import comparison_lines
from refsd.weights import recipes

pytestmark = pytest.mark.jitted  # whole models

MODELS = (
    "mistral-small/mistral/padded",
    "taesd/tae-decoder/outliers",
    "clip-l/clip/ended",
    "t5xxl/t5/padded",
    "sd35-large/mmdit/last-step",
)


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    def give(model, layout):
        path = folder / f"{model.family}-{model.type}-{model.quiet}.safetensors"
        return path if path.exists() else recipes.make(model, path, layout)

    return give


class InReverse(Arithmetic):
    """The same roundings, and sums in the reverse order."""

    def linear(self, x, weight, bias=None, weight_type="f32"):
        x, weight = (np.ascontiguousarray(np.asarray(a)[..., ::-1]) for a in (x, weight))
        return super().linear(x, weight, bias, weight_type)

    def conv2d(self, x, weight, bias, stride=1, padding=(0, 0, 0, 0), dilation=1, groups=1):
        if groups == 1:
            x, weight = (np.ascontiguousarray(np.asarray(a)[:, ::-1]) for a in (x, weight))
        return super().conv2d(x, weight, bias, stride, padding, dilation, groups)


class Listening(Taps):
    """Taps that know which was the first to be recorded once a bug has struck."""

    def __init__(self, arithmetic):
        super().__init__(ops=True)
        self.arithmetic, self.place = arithmetic, None

    def record(self, name, value):
        value = super().record(name, value)
        if self.arithmetic.struck and self.place is None:
            self.place = self.recorded[-1]
        return value


def broken(op: str, call: int, wrong) -> Arithmetic:
    """float32, but that the given call of one operation is wrong."""

    class Broken(InReverse):
        struck, calls = False, 0

    def method(self, *arguments, **named):
        self.calls += 1
        right = getattr(super(Broken, self), op)
        if self.calls - 1 != call:
            return right(*arguments, **named)
        self.struck = True
        return wrong(right, *arguments, **named)

    setattr(Broken, op, method)
    return Broken(TORCH_F32)


def tapped(model_files, case, arithmetic, taps=None):
    taps = Taps(ops=True) if taps is None else taps
    return taps, ModelJudge(model_files).tapped(case, case.realize(), arithmetic, taps)


@pytest.fixture(scope="module")
def runs(model_files):
    """(case's name, numerics) -> taps, kept."""
    kept = {}

    def run(name, numerics):
        if (name, numerics.name) not in kept:
            kept[name, numerics.name] = tapped(model_files, CASES[name], Arithmetic(numerics))[0]
        return kept[name, numerics.name]

    return run


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("numerics", [FLOAT32, GGML_CPU, TORCH_F16, TORCH_BF16], ids=lambda n: n.name)
def test_an_honest_engine_of_another_order_has_no_wrong_tap(model_files, runs, name, numerics):
    engine = replace(TORCH_F32 if numerics is FLOAT32 else numerics, attention="online")
    found, _ = tapped(model_files, CASES[name], InReverse(engine))
    assert len(found) > 30 and any(not np.array_equal(y, runs(name, numerics)[tap]) for tap, y in found.items())
    metrics = measure_taps(found, runs(name, FLOAT64), runs(name, numerics), numerics)
    assert [m.output for m in metrics] == list(found)
    assert [judge_output(m).reason for m in metrics if not judge_output(m).passed] == []


def times(factor):
    return lambda right, *a, **named: right(*a, **named) * np.float32(factor)


def one_channel(right, *a, **named):
    y = np.array(right(*a, **named))
    y[..., 3] *= np.float32(1.1)
    return y


BUGS = {
    "a wrong weight": ("mistral-small/mistral/padded", "linear", 6, lambda f, x, w, *a: f(x, w[::-1].copy(), *a)),
    "angles": ("mistral-small/mistral/padded", "rope_halves", 1, lambda f, x, angle: f(x, 1.01 * angle)),
    "no mask": (
        "mistral-small/mistral/padded",
        "attention",
        1,
        lambda f, q, k, v, scale, mask, *a: f(q, k, v, scale, None, None),
    ),
    "a channel": ("mistral-small/mistral/padded", "linear", 9, one_channel),
    "a flipped filter": (
        "taesd/tae-decoder/outliers",
        "conv2d",
        4,
        lambda f, x, w, *a: f(x, np.ascontiguousarray(w[:, :, ::-1]), *a),
    ),
    "eps of LayerNorm": (
        "clip-l/clip/ended",
        "layer_norm",
        2,
        lambda f, x, w, b, eps=1e-5: f(x, w, b, 100 * eps),
    ),
    "a missing bias": ("clip-l/clip/ended", "linear", 4, lambda f, x, w, b, *a: f(x, w, None, *a)),
    "eps of RMSNorm": ("t5xxl/t5/padded", "rms_norm", 2, lambda f, x, w, eps=1e-6: f(x, w, 1000 * eps)),
    "a gain": ("t5xxl/t5/padded", "linear", 8, times(1.0001)),
    "the scale of scores": (
        "sd35-large/mmdit/last-step",
        "attention",
        1,
        lambda f, q, k, v, scale=None, *a: f(q, k, v, 1.1 * q.shape[-1] ** -0.5, *a),
    ),
    "another activation": ("sd35-large/mmdit/last-step", "silu", 3, lambda f, x: np.maximum(x, 0)),
    "one missing bias": ("sd35-large/mmdit/last-step", "linear", 14, lambda f, x, w, b, *a: f(x, w, None, *a)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_first_wrong_tap_is_the_operation_with_the_bug(model_files, runs, bug):
    name, op, call, wrong = BUGS[bug]
    arithmetic = broken(op, call, wrong)
    listening = Listening(arithmetic)
    found, _ = tapped(model_files, CASES[name], arithmetic, listening)
    metrics = measure_taps(found, runs(name, FLOAT64), runs(name, FLOAT32), FLOAT32)
    wrong_taps = [m.output for m in metrics if not judge_output(m).passed]
    assert listening.place is not None and wrong_taps[0] == listening.place
    assert judge(metrics).reason.startswith(f"{listening.place}: ")


CASE = CASES["mistral-small/mistral/padded"]
FIRST_WRONG_NORM = 5
PLACE = "model.layers.1.self_attn.v_proj"


@pytest.fixture(scope="module")
def engine(model_files):
    """Taps and outputs of an engine with a bug in PLACE."""
    arithmetic = broken("linear", 9, one_channel)
    return tapped(model_files, CASE, arithmetic, Listening(arithmetic))


@pytest.fixture(scope="module")
def golden(model_files):
    return Reference(FLOAT64, model_files=model_files).run(CASE, CASE.realize())


def test_a_whole_dump_is_judged_in_the_order_of_computation(model_files, engine, golden):
    taps, outputs = engine
    compared = with_case(CASE, {**outputs, **taps}, golden, FLOAT32, model_files)
    assert [m.output for m in compared.examined.trace.taps] == [*taps, *golden]
    assert [m.output for m in compared.examined.outputs] == list(golden)
    assert compared.examined.verdict.reason.startswith(f"{PLACE}: ")
    assert (compared.examined.place, compared.examined.wrong) == (PLACE, [PLACE])
    assert (compared.absent, compared.examined.unseen) == ([], [])


class Wrong(Arithmetic):
    """Float32 with three bugs: in each second layer's attention, in every gate, in the last layer's norms."""

    attentions = gates = norms = 0

    def attention(self, q, k, v, scale=None, *arguments, **named):
        self.attentions += 1
        usual = q.shape[-1] ** -0.5 if scale is None else scale
        return super().attention(q, k, v, usual if self.attentions % 2 else usual**2, *arguments, **named)

    def silu(self, x):
        return super().gelu(x)

    def rms_norm(self, x, weight, eps=1e-6, *arguments):
        self.norms += 1
        return super().rms_norm(x, weight, eps if self.norms < FIRST_WRONG_NORM else 1000 * eps, *arguments)


def test_each_of_several_bugs_has_its_place_and_its_cause(model_files, golden):
    taps, outputs = tapped(model_files, CASE, Wrong(TORCH_F32))
    compared = with_case(CASE, {**outputs, **taps}, golden, FLOAT32, model_files)
    later = {
        "model.layers.1.self_attn.attention": "scale 1/D",
        "model.layers.2.input_layernorm.weight": "eps is 0.01, not 1e-05",
    }
    assert (compared.examined.place, compared.causes) == ("model.layers.0.mlp.silu", ["gelu"])
    assert compared.others == later and len(compared.examined.wrong) == 7
    lines = [*comparison_lines(compared)]
    assert all(f"and at {tap}: the reference agrees if {cause}" in lines for tap, cause in later.items())
    one_bug = with_case(
        CASE, {"model.layers.0.mlp.silu": taps["model.layers.0.mlp.silu"]}, golden, FLOAT32, model_files
    )
    assert not one_bug.others


@pytest.mark.parametrize(
    ("cause", "told"), [("b is multiplied by 0.999989305", False), ("b is multiplied by 0.5", True)]
)
def test_a_number_of_many_digits_is_no_bug_of_a_later_layer(model_files, golden, monkeypatch, cause, told):
    """It is what the first bug leaves of a right layer: nobody writes such a number."""

    def explain(kind, standard, actual, taps, examined, at=""):
        return Explanation((cause if at else "gelu",))

    monkeypatch.setattr("refsd.judges.comparison.explain", explain)
    taps, outputs = tapped(model_files, CASE, Wrong(TORCH_F32))
    compared = with_case(CASE, {**outputs, **taps}, golden, FLOAT32, model_files)
    assert compared.causes == ["gelu"] and ({*compared.others.values()} == {cause}) == told


def test_layers_of_other_operations_come_first():
    of = {
        "a.0.rope": "rope",
        "a.0.rope_k": "rope",
        "a.0.attention": "attention",
        "a.1.rope": "rope",
        "a.0.act": "silu",
    }
    ops = {tap: (op,) for tap, op in of.items()}
    assert _of_other_layers([*of], ops) == ["a.0.attention", "a.0.act", "a.0.rope_k"]


def test_a_search_that_takes_long_says_what_it_seeks(tmp_path, engine, monkeypatch):
    monkeypatch.setattr("refsd.cli.compare._PATIENCE", 0.0)
    monkeypatch.setattr("refsd.judges.model._SEARCH", 0.5)
    code, said = _call(_save(tmp_path / "dump.safetensors", {**engine[0], **engine[1]}), CASE.name)
    assert code == 1 and f"seeking the cause at {PLACE}" in said


@pytest.fixture
def unexplained(monkeypatch):
    """No time for causes: nothing that the dump has explains the bug of `engine`, and a search takes it all."""
    monkeypatch.setattr("refsd.judges.model._SEARCH", 0.0)


@pytest.mark.usefixtures("unexplained")
def test_a_dump_may_have_some_taps_alone(model_files, engine, golden):
    taps, _ = engine
    before = {name: taps[name] for name in ("model.layers.0", "model.layers.0.mlp.down_proj")}
    compared = with_case(CASE, before, golden, FLOAT32, model_files)
    assert compared.examined.verdict.passed and len(compared.examined.trace.taps) == 2
    assert compared.absent == list(golden)
    one = with_case(CASE, {"model.layers.1": taps["model.layers.1"]}, golden, FLOAT32, model_files)
    assert one.examined.verdict.reason.startswith("model.layers.1: ")


def test_a_dump_without_taps_that_nothing_explains_says_how_to_list_them(model_files, golden):
    noise = np.random.default_rng(0).standard_normal
    wrong = {name: y + 0.3 * np.std(y) * noise(y.shape) for name, y in golden.items()}
    compared = with_case(CASE, wrong, golden, FLOAT32, model_files)
    assert not compared.causes and f"refsd golden show {CASE.name} --taps" in compared.notes[-1]


def test_a_right_dump_without_taps_says_what_outputs_hide(model_files, engine, golden):
    compared = with_case(CASE, golden, golden, FLOAT32, model_files)
    assert compared.examined.verdict.passed and len(compared.notes) == 1
    assert compared.notes[0].startswith("outputs hide small errors") and CASE.name in compared.notes[0]
    operation = CASES["silu/f32/wide-x2x320"]
    right = Reference(FLOAT64).run(operation, operation.realize())
    assert not with_case(operation, right, right, FLOAT32, model_files).notes


def test_where_an_output_is_missing_no_cause_is_spoken_of(model_files, golden):
    compared = with_case(CASE, {"mine": np.zeros(3), "other": np.zeros(3)}, golden, FLOAT32, model_files)
    lines = "\n".join(comparison_lines(compared))
    assert "is missing" in lines and "no cause" not in lines


def test_a_dump_without_a_tap_must_have_every_output(model_files, engine, golden):
    part = dict([*golden.items()][:-1])
    assert "is missing" in with_case(CASE, part, golden, FLOAT64, model_files).examined.verdict.reason
    single = CASES["taesd/tae-decoder/outliers"]
    (truth,) = (right := Reference(FLOAT64, model_files=model_files).run(single, single.realize())).values()
    renamed = with_case(single, {"whatever": truth}, right, FLOAT64, model_files)
    assert renamed.examined.verdict.passed and not renamed.examined.trace.taps
    typo = {**golden, "model.layer.1": engine[0]["model.layers.1"]}
    compared = with_case(CASE, typo, golden, FLOAT32, model_files)
    assert compared.examined.verdict.passed and compared.notes == [
        'not judged, for the golden has no such name: 1 tensor: model.layer.1 (did you mean "model.layers.1"?); '
        "say --names MINE=THEIRS"
    ]
    nothing = with_case(CASE, {"model.layer.1": typo["model.layer.1"]}, golden, FLOAT32, model_files)
    assert "is missing" in nothing.examined.verdict.reason and len(nothing.notes) == 1


@pytest.mark.usefixtures("unexplained")
def test_own_names_are_given_the_reference_s(tmp_path, model_files, engine, golden):
    """A right port with names of its own: by pairs, by a pattern, by a file."""
    taps, outputs = engine
    mine = {name.replace("model.layers.", "blk.").replace(".mlp.", ".ff."): y for name, y in taps.items()}
    dump = _save(tmp_path / "mine.safetensors", {**mine, **outputs})
    (tmp_path / "names.txt").write_text("# mine\nblk.*.ff.* = model.layers.*.mlp.*\n\nblk.*=model.layers.*\n")
    _, plain = _call(dump, CASE.name)
    assert "not asked for" not in plain and "not judged, for the golden has no such name: " in plain
    code, said = _call(dump, CASE.name, "--names", tmp_path / "names.txt")
    assert code == 1 and f"at {PLACE}" in said and "no such name" not in said
    one = _save(tmp_path / "one.safetensors", {"second": taps["model.layers.0"]})
    code, said = _call(one, CASE.name, "--names", "second=model.layers.0")
    assert code == 0 and "1 of 1 tap right" in said


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        (["blk"], "--names blk: neither MINE=THEIRS nor a file"),
        (["a=x", "a=y"], "'a': named 'x' and 'y'"),
        (["b.*=y"], "with as many * as the other"),
        (["c=x"], "--names 'c': no tensor of the dump has this name"),
        (["a=x", "b=x"], "'a' and 'b' both become 'x'"),
    ],
)
def test_names_that_make_no_sense_are_bad_input(tmp_path, pairs, says):
    dump = _save(tmp_path / "dump.safetensors", {"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)})
    arguments = [text for pair in pairs for text in ("--names", pair)]
    code, said = _call(dump, "silu/f32/bend-x33x77", *arguments)
    assert code and says in said


def test_an_output_of_the_right_size_is_reshaped_and_that_is_noted(tmp_path):
    case = CASES["silu/f32/bend-x33x77"]
    y = Reference(FLOAT32).run(case, case.realize())["y"]
    code, said = _call(_save(tmp_path / "flat.safetensors", {"y": y.reshape(-1)}), case.name)
    assert code == 0 and "y: your shape is [2541], the reference's [33, 77]: read as reshape(33, 77)" in said
    code, said = _call(_save(tmp_path / "wrong.safetensors", {"y": 2 * y.reshape(3, 11, 77)}), case.name)
    assert code == 1 and "your shape is [3, 11, 77], the reference's [33, 77]: read as reshape(33, 77)" in said
    assert "multiplied by 2" in said
    code, said = _call(_save(tmp_path / "turned.safetensors", {"y": y.T}), case.name)
    assert code == 1 and "has shape [77, 33], expected [33, 77]" in said and "agrees after transpose" in said


ATTENTION = CASES["flux-dev/flux/between"]
ROTATED = ("double_blocks.0.rope", "double_blocks.0.rope.1", "double_blocks.0.attention")


@pytest.mark.parametrize("by_heads", [lambda y: y.transpose(0, 2, 1, 3), lambda y: y.reshape(*y.shape[:2], -1)])
def test_taps_in_another_layout_are_read_as_they_lie_and_a_bug_behind_it_is_found(model_files, by_heads):
    judge_ = ModelJudge(model_files)
    inputs, taps = ATTENTION.realize(), Taps(ops=True)
    golden = judge_.answer(ATTENTION, inputs, Arithmetic(FLOAT64))
    judge_.tapped(ATTENTION, inputs, Arithmetic(FLOAT32), taps)
    own = {name: np.ascontiguousarray(by_heads(taps[name])) for name in ROTATED}
    right = with_case(ATTENTION, own, golden, FLOAT32, model_files)
    assert right.examined.verdict.passed
    shapes = [f"your shape is {[*own[name].shape]}, the reference's {[*taps[name].shape]}" for name in ROTATED]
    assert [note.partition(": ")[2].partition(": read as ")[0] for note in right.notes] == shapes
    halves = np.concatenate([taps[ROTATED[1]][..., ::2], taps[ROTATED[1]][..., 1::2]], axis=-1)
    wrong = {**own, ROTATED[1]: np.ascontiguousarray(by_heads(halves.astype(np.float32)))}
    compared = with_case(ATTENTION, wrong, golden, FLOAT32, model_files)
    assert compared.examined.place == ROTATED[1] and compared.notes == right.notes
    assert not any("order" in cause and "stored as" in cause for cause in compared.causes)
    plain = with_case(ATTENTION, {name: taps[name] for name in ROTATED}, golden, FLOAT32, model_files)
    assert not plain.notes


def test_a_result_that_the_next_call_wrote_over_is_known_again(model_files):
    """Of the second call the dump has no tensor of its own."""
    judge_, inputs, taps = ModelJudge(model_files), ATTENTION.realize(), Taps(ops=True)
    golden = judge_.answer(ATTENTION, inputs, Arithmetic(FLOAT64))
    judge_.tapped(ATTENTION, inputs, Arithmetic(FLOAT32), taps)
    compared = with_case(ATTENTION, {ROTATED[0]: taps[ROTATED[1]]}, golden, FLOAT32, model_files)
    assert compared.causes == [f"it is the result of another call: {ROTATED[1]}"]


def test_the_order_of_axes_is_the_nearest_one():
    right = np.random.default_rng(1).standard_normal((2, 11, 2, 5))
    noisy = right + np.random.default_rng(2).standard_normal(right.shape)
    assert nearest_order(noisy, right) == nearest_order(noisy.reshape(2, 11, 10), right) == ()
    assert nearest_order(noisy.transpose(0, 2, 1, 3), right) == (0, 2, 1, 3)
    assert nearest_order(noisy.transpose(2, 0, 1, 3), right) == (1, 2, 0, 3)
    assert nearest_order(np.swapaxes(noisy.reshape(2, 11, 10), 1, 2), right) == (0, 2, 1)
    assert nearest_order(noisy[:, :5], right) == ()


@pytest.mark.parametrize(("shape", "own"), [((1, 8, 8), (8, 8)), ((16, 4, 4), (16, 16)), ((4, 4, 8), (4, 4, 8, 1))])
def test_axes_of_one_size_that_are_exchanged_are_no_layout(shape, own):
    right = np.random.default_rng(1).standard_normal(shape)
    turned = np.swapaxes(right.reshape(own), 0, 1)
    assert nearest_order(turned, right) == ()
    assert not with_files({"y": turned}, {"y": right}, {"y": right * (1 + 1e-7)}).examined.verdict.passed


def test_a_file_that_is_transposed_fails_as_a_case_does_and_its_order_is_named():
    right = np.random.default_rng(1).standard_normal((2, 5, 3, 7))
    truth, honest = {"y": right, "z": right[0]}, {"y": right * (1 + 1e-7), "z": right[0] * (1 + 1e-7)}
    turned = with_files({"y": right.transpose(0, 2, 1, 3), "z": right[0]}, truth, honest)
    assert turned.examined.place == "y" and not turned.examined.verdict.passed
    assert (turned.stored, turned.notes) == ("y agrees after transpose(0, 2, 1, 3)", [])
    assert not with_files({"y": 2 * right.transpose(0, 2, 1, 3), "z": right[0]}, truth, honest).stored
    joined = with_files({"y": right.transpose(0, 2, 1, 3).reshape(2, 3, 35), "z": right[0]}, truth, honest)
    assert not joined.examined.verdict.passed
    by_heads = right.reshape(2, 5, 21).transpose(0, 2, 1)
    laid = with_files({"y": by_heads, "z": right[0]}, truth, honest)
    assert laid.examined.verdict.passed and "read as transpose(0, 2, 1) and reshape(2, 5, 3, 7)" in laid.notes[0]


def test_the_order_of_a_large_tap_is_found_by_some_of_its_numbers(monkeypatch):
    right = np.random.default_rng(1).standard_normal((6, 7, 5, 4, 3))
    found = np.ascontiguousarray(right.reshape(6, 7, 5, 12).transpose(2, 0, 3, 1))
    for compared in (right.size, 100):
        monkeypatch.setattr("refsd.causes.model.following._COMPARED", compared)
        assert nearest_order(found, right) == (1, 3, 0, 2)


@pytest.mark.usefixtures("unexplained")
def test_a_name_that_the_golden_lacks_is_refused_and_one_that_the_dump_lacks_is_noted(tmp_path, engine):
    taps, outputs = engine
    dump = _save(tmp_path / "dump.safetensors", {"blk.0": taps["model.layers.0"], **outputs})
    code, said = _call(dump, CASE.name, "--names", "blk.*=model.layer.*")
    assert code and "the golden has no tensor 'model.layer.0' (did you mean \"model.layers.0\"?)" in said
    (tmp_path / "names.txt").write_text("blk.*=model.layers.*\nhead=model.norm\n")
    code, said = _call(dump, CASE.name, "--names", tmp_path / "names.txt")
    assert "1 line of --names fits no tensor: head" in said and "no such name" not in said and code == 1
    (tmp_path / "names.txt").write_text("blk.*=model.layer.*\n")
    code, said = _call(dump, CASE.name, "--names", tmp_path / "names.txt")
    told = (
        "--names blk.*=model.layer.*: the golden has no tensor 'model.layer.0' (did you mean \"model.layers.0\"?)"
    )
    assert [line for line in said.splitlines() if not line.startswith("seeking")][1] == told and code == 1
    code, said = _call(dump, CASE.name, "--names", "head=model.norm")
    assert code and "--names 'head': no tensor of the dump has this name" in said


@pytest.mark.usefixtures("unexplained")
def test_no_group_of_candidates_is_begun_behind_the_limit(tmp_path, engine, monkeypatch):
    begun = []

    def groups(self, gap):
        def group():
            begun.append(self.tap)
            yield from ()

        yield group()

    monkeypatch.setattr("refsd.causes.model.place.Place._unlisted", groups)
    code, _ = _call(_save(tmp_path / "dump.safetensors", {**engine[0], **engine[1]}), CASE.name)
    assert code == 1 and not begun


def test_a_tap_without_a_witness_is_not_judged_and_hides_nothing():
    y = np.random.default_rng(1).standard_normal((3, 8))
    truth, honest = {"first": y, "second": y}, {"first": -y, "second": y * (1 + 1e-6)}
    right = with_files({"first": 9 * y, "second": y}, truth, honest)
    assert right.examined.unseen == ["first"] and right.examined.verdict.passed
    assert with_files({"first": y, "second": 2 * y}, truth, honest).examined.verdict.reason.startswith("second: ")
    assert not with_files({"first": y}, truth, honest).examined.verdict.passed


def _call(*arguments) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    return result.exit_code, result.output + str(result.exception or "")


def _save(path, tensors):
    save_file({name: np.ascontiguousarray(y) for name, y in tensors.items()}, path)
    return path


def test_an_output_that_is_a_tap_too_has_one_line():
    y = np.ones((2, 3))
    for found, lines in ((y, ["pass  out"]), (y + 1, ["FAIL  out", "FAIL  out, of the whole run"])):
        both = measure_taps({"out": found}, {"out": y}, {"out": y * (1 + 1e-7)}, FLOAT32)
        said = comparison_lines(Comparison(Examination(Trace(both), both)))
        assert [line.partition("  margin")[0] for line in said if line[6:].startswith(("out ", "out,"))] == lines


def test_files_of_taps(tmp_path, runs, engine):
    """What `refsd forward --taps` wrote in float64 and with the engine's numerics, and the engine's."""
    truth = _save(tmp_path / "truth.safetensors", runs(CASE.name, FLOAT64))
    honest = _save(tmp_path / "honest.safetensors", runs(CASE.name, FLOAT32))
    found = _save(tmp_path / "found.safetensors", engine[0])
    code, said = _call(honest, truth, "--honest", honest)
    assert code == 0 and f"{len(engine[0])} of {len(engine[0])} taps right" in said
    compared = with_files(engine[0], runs(CASE.name, FLOAT64), runs(CASE.name, FLOAT32))
    assert compared.examined.verdict.reason.startswith(f"{PLACE}: ")
    assert _call(found, truth, "--honest", honest)[0] == 1
    some = _save(tmp_path / "some.safetensors", {"model.layers.0": engine[0]["model.layers.0"]})
    code, said = _call(some, truth, "--honest", honest)
    assert code == 0 and "1 of 1 tap right" in said and "not in the dump, so not judged" in said


def test_bad_usage_of_files(tmp_path):
    y = {"a": np.ones((2, 3)), "b": np.ones(2)}
    truth = _save(tmp_path / "truth.safetensors", y)
    other = _save(tmp_path / "other.safetensors", {"c": np.ones(2), "d": np.ones(2)})
    short = _save(tmp_path / "short.safetensors", {"a": np.ones((2, 3))})
    flat = _save(tmp_path / "flat.safetensors", {"a": np.ones(6), "b": np.ones(2)})
    for arguments, says in (
        ((truth, truth), "give --honest FILE"),
        ((truth, truth, "--numerics", "float32"), "leave it out"),
        ((other, truth, "--honest", truth), "no name is in both"),
        ((truth, truth, "--honest", short), "the honest run has no tensor 'b'"),
        ((truth, truth, "--honest", flat), "a is [6] in the honest run, [2, 3] in the golden"),
        ((truth, "silu/f32/wide-x2x320", "--honest", truth), "is a case"),
        ((truth, "silu/f32/wide-x2x32"), 'did you mean "silu/f32/wide-x2x320"?'),
        ((truth, "silu/f32/wide-x2x320", "--numerics", "torch-fp16"), 'did you mean "torch-f16"?'),
    ):
        result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
        assert isinstance(result.exception, BadInput) and says in str(result.exception)


def test_taps_in_another_order_are_a_convention_where_the_outputs_agree(model_files):
    """An engine that puts the picture before the text in the single blocks, with its positions, is right."""
    case, judge_, taps = CASES["flux-dev/flux/first-step"], ModelJudge(model_files), Taps(ops=True)
    inputs = case.realize()
    golden = judge_.answer(case, inputs, Arithmetic(FLOAT64))
    outputs = judge_.tapped(case, inputs, Arithmetic(FLOAT32), taps)
    text, both = 7, 22
    turned = {name: np.roll(y, -text, axis=1) if y.shape[1] == both else y for name, y in taps.items()}
    turned |= {name: y for name, y in taps.items() if name.startswith("double_blocks.")}
    compared = with_case(case, {**outputs, **turned}, golden, FLOAT32, model_files)
    assert compared.examined.verdict.passed
    assert compared.notes[-1].startswith("a convention, no bug: the outputs agree; ")
    assert "in another order, first single_blocks.0." in compared.notes[-1]
    wrong = {name: 1.01 * y if name.startswith("final_layer") else y for name, y in turned.items()}
    assert not with_case(case, {**outputs, **wrong}, golden, FLOAT32, model_files).examined.verdict.passed
