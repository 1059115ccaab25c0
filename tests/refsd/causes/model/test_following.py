"""Taps judged on the engine's own earlier taps: honest ones pass, a bug is wrong where it stands alone."""

import re
from dataclasses import replace

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.causes.model.mutants import MUTANTS
from refsd.golden import conform, verdict
from refsd.golden.examination import examine, explain
from refsd.golden.judge import Standard
from refsd.golden.verdict import judge_output
from refsd.judges import judges
from refsd.judges import model as model_judge
from refsd.judges.model import ModelJudge
from refsd.module import Taps
from refsd.networks.bugs import Change, all_skipped
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64, GGML_CPU, TORCH_BF16, TORCH_F16, TORCH_F32
from refsd.weights import recipes

pytestmark = pytest.mark.jitted  # whole models

MODELS = ("clip-l/clip/ended", "t5xxl/t5/padded", "sd35-large/mmdit/last-step", "flux-dev/flux/quiet")


@pytest.fixture(scope="module")
def model_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    def give(model, layout):
        path = folder / f"{model.family}-{model.type}-{model.quiet}.safetensors"
        return path if path.exists() else recipes.make(model, path, layout)

    return give


class OneByOne(Arithmetic):
    """Products summed term by term in float32, as a loop does it."""

    def linear(self, x, weight, bias=None, weight_type="f32"):
        x = self.round_as(self._widen(x), self.numerics.activations.get(weight_type))
        y = np.zeros((*x.shape[:-1], len(weight)), x.dtype)
        for k in range(x.shape[-1]):
            y += x[..., k, None] * weight[:, k]
        return self._round(y if bias is None else y + bias)


class Counting(Arithmetic):
    """calls: of an operation, in this request"""

    calls = 0


def broken(numerics, op, call, wrong):
    """Honest, but for one call (or each, if that is None) of an operation."""

    class Broken(Counting):
        pass

    def method(self, *arguments, **named):
        self.calls += 1
        right = getattr(Arithmetic, op).__get__(self)
        return (
            right(*arguments, **named) if call not in (None, self.calls - 1) else wrong(right, *arguments, **named)
        )

    setattr(Broken, op, method)
    return Broken(numerics)


def answered(model_files, name, arithmetic):
    """Outputs and taps."""
    taps = Taps(ops=True)
    return ModelJudge(model_files).tapped(CASES[name], CASES[name].realize(), arithmetic, taps), taps


def traced(model_files, name, arithmetic, numerics):
    outputs, taps = answered(model_files, name, arithmetic)
    found = {**taps, **outputs}
    case, kind = CASES[name], ModelJudge(model_files)
    trace = kind.trace(case, case.realize(), found, numerics)
    wrong = [m.output for m in trace.taps if not judge_output(m).passed]
    standard = Standard(case, case.realize(), outputs, {}, numerics)
    return trace, wrong, (kind.explain(standard, found, wrong[0]).causes if wrong else [])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("numerics", [FLOAT32, GGML_CPU, TORCH_F16, TORCH_BF16], ids=lambda n: n.name)
def test_an_engine_that_sums_one_by_one_has_no_wrong_tap(model_files, name, numerics):
    engine = OneByOne(replace(TORCH_F32 if numerics is FLOAT32 else numerics, attention="online"))
    trace, wrong, _ = traced(model_files, name, engine, numerics)
    assert len(trace.taps) > 30 and wrong == []


# bug -> model, operation, its call, what it gives, the tap, the cause that is named first
BUGS = {
    "eps of one norm": (
        "clip-l/clip/ended",
        "layer_norm",
        2,
        lambda right, x, w, b, eps: right(x, w, b, eps / 10),
        "text_model.encoder.layers.1.layer_norm1",
        "eps ten times too small",
    ),
    "a missing bias": (
        "clip-l/clip/ended",
        "linear",
        4,
        lambda right, x, w, b, *a: right(x, w, None, *a),
        "text_model.encoder.layers.0.mlp.fc1",
        "bias missing",
    ),
    "eps of RMSNorm": (
        "t5xxl/t5/padded",
        "rms_norm_apart",
        2,
        lambda right, x, w, eps: right(x, w, 10 * eps),
        "encoder.block.1.layer.0.layer_norm.weight",
        "eps ten times too large",
    ),
    "the scale of scores": (
        "sd35-large/mmdit/last-step",
        "attention",
        1,
        lambda right, q, k, v, scale, *a: right(q, k, v, 1.0, *a),
        "joint_blocks.1.attention",
        "scale missing",
    ),
}


# Two names of one bug: which is nearer depends on the last bits, and so on the CPU.
_ALIKE = {"scale missing": ("attention's scores are multiplied by 1 for 1/sqrt(D), or the reverse",)}


@pytest.mark.parametrize("numerics", [FLOAT32, GGML_CPU], ids=lambda n: n.name)
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_wrong_where_it_stands_and_named(model_files, bug, numerics):
    name, op, call, wrong, place, cause = BUGS[bug]
    _, places, causes = traced(model_files, name, broken(numerics, op, call, wrong), numerics)
    assert places == [place] and causes[0] in (cause, *_ALIKE.get(cause, ()))


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (lambda right, *a: right(*a) * np.float32(1.0003), r"the result is multiplied by 1\.000"),
        (lambda right, *a: right(*a) + np.float32(1e-5), None),
        (lambda right, x, w, *a: right(x, w[::-1].copy(), *a), "weight, axis O: in reverse order"),
    ],
    ids=["gain", "offset", "rows reversed"],
)
def test_what_no_page_lists_is_named_by_its_mechanism(model_files, wrong, cause):
    _, places, causes = traced(model_files, "t5xxl/t5/padded", broken(GGML_CPU, "linear", 8, wrong), GGML_CPU)
    assert places == ["encoder.block.1.layer.0.SelfAttention.k"]
    assert re.match(cause, causes[0]) if cause else causes == []


def test_a_bug_of_the_whole_model_is_named_at_its_first_place(model_files):
    wrong = broken(FLOAT32, "rope", None, lambda right, x, angle: Arithmetic(FLOAT32).rope_halves(x, angle))
    _, places, causes = traced(model_files, "flux-dev/flux/quiet", wrong, FLOAT32)
    assert causes == ["RoPE turns the other pairing of channels"]
    assert len(places) > 2 and all(place.split(".")[-1] == "rope" or ".rope." in place for place in places)


def test_another_layers_weights_are_named(model_files):
    """Two taps between which attention stands, too: the weights are the last operation's."""
    case = CASES["clip-l/clip/ended"]

    def exchanged(model, layout):
        from safetensors.numpy import load_file, save_file

        path = model_files(model, layout)
        other = path.with_name("exchanged.safetensors")
        tensors = load_file(path)
        for end in ("weight", "bias"):
            q, k = (f"text_model.encoder.layers.1.self_attn.{p}_proj.{end}" for p in "qk")
            (one,), (two,) = ([n for n in tensors if n.endswith(name)] for name in (q, k))
            tensors[one] = tensors[two]
        save_file(tensors, other)
        return other

    kind = ModelJudge(model_files)
    taps = Taps(ops=True)
    outputs = ModelJudge(exchanged).tapped(case, case.realize(), Arithmetic(FLOAT32), taps)
    found = {**taps, **outputs}
    place = "text_model.encoder.layers.1.self_attn.q_proj"
    standard = Standard(case, case.realize(), outputs, {}, FLOAT32)
    causes = kind.explain(standard, found, place).causes
    assert causes == ["it takes the weights of text_model.encoder.layers.1.self_attn.k_proj"]


class Tapped:
    """An engine that shows its taps, or some of them."""

    name, version = "tapped", "1"

    def __init__(self, model_files, arithmetic, shows=lambda name: True):
        self.model_files, self.arithmetic, self.shows = model_files, arithmetic, shows

    def refuses(self, case):
        return None

    def numerics(self, case):
        return self.arithmetic.numerics

    def deviations(self, case):
        return ()

    def run(self, case, inputs):
        return self.run_tapped(case, inputs)[0]

    def run_tapped(self, case, inputs):
        if isinstance(self.arithmetic, Counting):
            self.arithmetic.calls = 0
        outputs, taps = answered(self.model_files, case.name, self.arithmetic)
        return outputs, {name: y for name, y in taps.items() if self.shows(name)}


def judged(model_files, name, engine):
    def truths(case):
        return ModelJudge(model_files).answer(case, case.realize(), Arithmetic(FLOAT64))

    (result,) = conform.run(conform.Runner(judges(model_files), truths), [engine], [CASES[name]])
    return result


def test_conform_says_where_and_why(model_files):
    """An eps in one norm, which the output of an engine that rounds as ggml does not show."""
    name, op, call, wrong, place, cause = BUGS["eps of one norm"]
    blind = judged(model_files, name, Tapped(model_files, broken(GGML_CPU, op, call, wrong), lambda name: False))
    assert (blind.status, blind.place) == (verdict.PASS, "")
    seen = judged(model_files, name, Tapped(model_files, broken(GGML_CPU, op, call, wrong)))
    assert (seen.status, seen.place, seen.causes) == (verdict.FAIL, place, (cause,))
    assert seen.reason.startswith(f"{place}: ")
    assert seen.reason.endswith(f"; 1 of 37 taps wrong by itself; the reference agrees if {cause}")
    assert [m.output for m in seen.taps] == [place]


def test_a_trace_holds_the_first_wrong_tap_of_the_reference(model_files):
    """From which the page draws its error map."""
    name, op, call, wrong, place, _ = BUGS["eps of one norm"]
    trace = traced(model_files, name, broken(GGML_CPU, op, call, wrong), GGML_CPU)[0]
    ((tap, (truth, honest)),) = trace.first.items()
    found = answered(model_files, name, broken(GGML_CPU, op, call, wrong))[1][place]
    assert tap == place and np.abs(honest - truth).max() < np.abs(found - truth).max() / 4
    assert not traced(model_files, name, Arithmetic(GGML_CPU), GGML_CPU)[0].first


def test_a_part_of_a_tensor_that_the_dump_has_not_is_named(model_files):
    """The gate is the modulation's last part, not its third; no modulation is shown, nor any output."""
    case, kind = CASES["flux-dev/flux/between"], ModelJudge(model_files)
    right = {name: y.astype(np.float32) for name, y in kind.reference_taps(case, case.realize()).items()}
    place, block = "double_blocks.0.gated_add", "double_blocks.0"
    own, gates = right[place], np.split(right[f"{block}.img_mod.lin"].reshape(2, -1), 6, axis=-1)
    found = {name: y for name, y in right.items() if "mod" not in name}
    found[place] = own + (gates[5] - gates[2])[:, None] * right[f"{block}.img_attn.proj"]
    for gone, cause in (((), "gate is read from part 6 of 6 of double_blocks.0.img_mod.lin"), (gates, None)):
        found[place] = found[place] + 0.1 * len(gone) * np.sin(np.arange(own.size)).reshape(own.shape)
        standard = Standard(case, case.realize(), {}, {}, FLOAT32)
        causes = kind.explain(standard, found, place).causes
        assert causes[0].startswith(cause) if cause else not causes


@pytest.mark.parametrize(
    ("order", "cause"),
    [
        ([0, 2, 1, 3, 4, 5], "parts 2 and 3 of the 6 of {} are exchanged"),
        ([0, 1, 2, 5, 4, 3], "parts 4 and 6 of the 6 of {} are exchanged"),
    ],
)
def test_parts_of_a_modulation_in_another_order_are_named(model_files, order, cause):
    """The layers between them and what is wrong are not shown."""
    case, kind = CASES["flux-dev/flux/between"], ModelJudge(model_files)
    mod = "double_blocks.0.img_mod.lin"
    taps = {name: y.astype(np.float32) for name, y in kind.reference_taps(case, case.realize()).items()}
    wrong = {**taps, mod: taps[mod].reshape(2, 6, -1)[:, order].reshape(taps[mod].shape)}
    shown = {name: y for name, y in taps.items() if name.endswith("img_mod.lin") or name == "img_in"}
    place = "double_blocks.0.img_attn.qkv" if "2 and 3" in cause else "double_blocks.0.img_mlp.0"
    given = {**shown, mod: wrong[mod]}
    moved = kind.place(Standard(case, case.realize(), {}, {}, FLOAT32), {**given, place: taps[place]}, place)
    found = moved.run(Arithmetic(FLOAT32), Change())
    causes = kind.explain(Standard(case, case.realize(), {}, {}, FLOAT32), {**shown, place: found}, place).causes
    assert any(one.startswith(cause.format(mod)) for one in causes), causes
    assert causes[0].startswith(("the modulation's parts are read in the order", cause.format(mod)))


def test_what_nothing_explains_is_described(model_files):
    wrong = broken(FLOAT32, "linear", 8, lambda right, *a: np.abs(right(*a)))
    result = judged(model_files, "t5xxl/t5/padded", Tapped(model_files, wrong))
    assert (result.place, result.causes) == ("encoder.block.1.layer.0.SelfAttention.k", ())
    assert result.reason.endswith("; 1 of 42 taps wrong by itself; y = |truth|")


def test_the_nearest_known_bug_is_named_with_its_share(model_files, monkeypatch):
    """A missing bias, and noise beside it: in the layers' outputs, and in the model's."""

    def wrong(right, x, weight, bias=None, *rest):
        y = right(x, weight, None, *rest)
        noise = np.random.default_rng(y.size).standard_normal(y.shape).astype(y.dtype)
        return y if bias is None else y + np.float32(0.4 * np.sqrt(np.mean(bias**2))) * noise

    name = "clip-l/clip/ended"
    case = CASES[name]
    kind, inputs = ModelJudge(model_files), case.realize()
    truth, honest = (kind.answer(case, inputs, Arithmetic(numerics)) for numerics in (FLOAT64, FLOAT32))
    standard = Standard(case, inputs, truth, honest, FLOAT32)
    outputs, taps = answered(model_files, name, broken(FLOAT32, "linear", None, wrong))
    examined = examine(kind, standard, outputs, taps)
    near = explain(kind, standard, outputs, taps, examined).nearest
    assert near.cause == "bias missing" and 80 <= near.percent <= 90
    bug = next(mutant for mutant in MUTANTS if mutant.name == "biases are missing")
    monkeypatch.setattr(model_judge, "MUTANTS", [*MUTANTS[:5], bug])
    rng = np.random.default_rng(3)
    found = {
        output: y + 0.4 * np.sqrt(np.mean((y - truth[output]) ** 2)) * rng.standard_normal(y.shape)
        for output, y in kind.wrong_answer(case, inputs, bug).items()
    }
    near = explain(kind, standard, found, {}, examine(kind, standard, found, {})).nearest
    assert near.cause == bug.name and 80 <= near.percent <= 92


def test_fewer_taps_place_a_bug_between_two(model_files):
    name, op, call, wrong, _, cause = BUGS["a missing bias"]
    blocks = Tapped(
        model_files, broken(FLOAT32, op, call, wrong), lambda name: name.endswith((".self_attn", ".mlp"))
    )
    result = judged(model_files, name, blocks)
    assert result.place == "text_model.encoder.layers.0.mlp"
    assert result.causes[0] == f"linear before it: {cause}"


def test_a_tap_of_an_unknown_name_is_named_at_once(model_files, monkeypatch):
    engine = Tapped(model_files, Arithmetic(FLOAT32))
    answers = engine.run_tapped

    def misnamed(case, inputs):
        outputs, taps = answers(case, inputs)
        return outputs, {**taps, "text_model.encoder.layers.9": np.zeros(3)}

    engine.run_tapped = misnamed
    monkeypatch.setattr(ModelJudge, "explain", lambda *_: pytest.fail("sought a cause of a misspelt name"))
    result = judged(model_files, "clip-l/clip/ended", engine)
    assert (result.status, result.place, result.causes) == (verdict.FAIL, "", ())
    assert result.reason == (
        "'text_model.encoder.layers.9' is the name of no tap of this case "
        '(did you mean "text_model.encoder.layers.1"?)'
    )


def test_a_search_for_a_cause_that_fails_leaves_the_verdict(model_files, monkeypatch):
    def broken_search(*_):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(ModelJudge, "explain", broken_search)
    name, op, call, wrong, place, _ = BUGS["eps of RMSNorm"]
    result = judged(model_files, name, Tapped(model_files, broken(FLOAT32, op, call, wrong)))
    assert (result.status, result.place, result.causes) == (verdict.FAIL, place, ())
    assert result.reason.endswith("; the search for a cause failed: ZeroDivisionError: division by zero")


def test_a_tap_that_is_not_finite_is_explained(model_files):
    """An overflow of float16 on the way to a black picture."""

    def overflowing(right, *arguments):
        y = right(*arguments)
        return np.where(np.abs(y) > 2, np.copysign(np.float32(np.inf), y), y)

    wrong = broken(FLOAT32, "linear", 8, overflowing)
    result = judged(model_files, "t5xxl/t5/padded", Tapped(model_files, wrong))
    assert result.place == "encoder.block.1.layer.0.SelfAttention.k" and "not finite" in result.reason
    assert result.causes[0].startswith("numbers overflow: infinite where the truth is beyond 2")


def explained(model_files, name, found, place):
    """The causes at a place of a dump without outputs."""
    standard = Standard(CASES[name], CASES[name].realize(), {}, {}, FLOAT32)
    return ModelJudge(model_files).explain(standard, found, place).causes


def test_a_source_that_no_tap_shows_is_named_by_who_reads_it(model_files):
    """What Z-Image's first refiners read, tokens and padding, is no operation's result."""

    class Broken(Counting):
        def rms_norm(self, x, weight, eps):
            if x.shape[-1] == 384:
                self.calls += 1
                self.block = x if self.calls == 9 else self.__dict__.get("block")  # the text's first refiner
                x = self.block if self.calls == 11 else x
            return super().rms_norm(x, weight, eps)

    _, places, causes = traced(model_files, "zimage/zimage/masked", Broken(FLOAT32), FLOAT32)
    assert places == ["context_refiner.0.ffn_norm1.weight"]
    (cause,) = causes
    assert cause.startswith("x is read from the input of context_refiner.0.attention_norm1.weight: the layers in")


def test_norms_behind_the_rope_of_joined_streams_are_named(model_files):
    """RoPE turns text and picture together, which have weights of their own; a dump shows no norms of heads."""

    class Broken(Arithmetic):
        weights, turn = (), 1

        def rms_norm(self, x, weight, eps):
            self.weights = (*self.weights, weight)
            return x

        def rope(self, x, angle):
            y, self.turn = super().rope(x, angle), 1 - self.turn  # 0 for queries, 1 for keys
            text, picture = self.weights[self.turn - 2], self.weights[self.turn]
            self.weights = self.weights if self.turn == 0 else ()
            parts = (y[:, :1], text), (y[:, 1:], picture)
            return np.concatenate([super(Broken, self).rms_norm(*part, 1e-6) for part in parts], axis=1)

    _, taps = answered(model_files, "flux-dev/flux/between", Broken(FLOAT32))
    found = {name: y for name, y in taps.items() if "norm.scale" not in name.replace("_norm", "norm")}
    for place in ("double_blocks.0.rope", "single_blocks.0.rope"):
        causes = explained(model_files, "flux-dev/flux/between", found, place)
        assert [*causes] == ["the norms of queries and keys come behind RoPE"]


def test_blocks_that_a_dump_has_not_are_all_skipped(model_files):
    blocks = {"noise_refiner.0", "noise_refiner.1"}
    with all_skipped(blocks).change.in_models():
        _, taps = answered(model_files, "zimage/zimage/masked", Arithmetic(FLOAT32))
    found = {name: y for name, y in taps.items() if not name.startswith("noise_refiner.")}
    place = "layers.0.attention_norm1.weight"
    assert explained(model_files, "zimage/zimage/masked", found, place) == [
        "blocks noise_refiner.0, noise_refiner.1 are skipped"
    ]


def test_an_input_left_out_comes_before_a_source_that_is_zero_there(model_files):
    """Padding that was not written: another tap happens to be zero in its rows."""
    name, place = "zimage/zimage/whole", "context_refiner.0.add"
    _, taps = answered(model_files, name, Arithmetic(FLOAT32))
    found = {tap: y.copy() for tap, y in taps.items()}
    found[place][:, 7:] = found["context_refiner.0.attention_norm2.weight"][:, 7:]
    found["context_refiner.0.attention.rope.1"][:, 7:] = 0
    assert explained(model_files, name, found, place)[0].startswith(
        "add left out: b is the result, in the last 25 of"
    )


def test_zeros_are_not_what_another_tap_of_zeros_should_be(model_files):
    name, place = "zimage/zimage/whole", "context_refiner.0.attention.attention"
    _, taps = answered(model_files, name, Arithmetic(FLOAT32))
    gone = place, "context_refiner.0.attention.out"
    found = {tap: 0 * y if tap in gone else y for tap, y in taps.items()}
    assert explained(model_files, name, found, place) == ["nothing is computed: zeros"]
