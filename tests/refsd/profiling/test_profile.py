"""Every profile is told apart from outside, written down as Numerics, and a wrong declaration is found."""

import functools
import json
import re
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

import refsd
from refsd.cli import app
from refsd.engines.exec.description import read_description
from refsd.engines.reference import Reference
from refsd.golden.block_activations import OTHERWISE, block_of, moved_otherwise
from refsd.golden.engine import EngineFailure
from refsd.numerics.profiles import (
    FLOAT32,
    FLOAT64,
    GGML_CPU,
    INT8_ROWS,
    LLM_ROWS,
    PROFILES,
    SDNQ_FP8,
    SDNQ_ROWS,
    TORCH_BF16,
    TORCH_F16,
    Float16Sums,
)
from refsd.numerics.tensor import stored
from refsd.profiling import few_bits
from refsd.profiling.described import described
from refsd.profiling.few_bits import RULES
from refsd.profiling.pages import OPS, PROBES
from refsd.profiling.profile import Answers, against, against_declaration, ask_all, expected_of, matches
from refsd.profiling.report import as_lines, conclude

# One storage type of each kind is enough here.
_FEW = (
    "f16 weights",
    "q8_0 weights",
    "q4_1 weights",
    "q4_k weights",
    "i8 weights",
    "f8_e4m3 weights",
    "nvfp4_comfy weights",
)
FEW = tuple(p for p in PROBES if p.op != "linear" or not p.name.endswith(" weights") or p.name.endswith(_FEW))
SAID = ("compute", "storage", "products", "conv", "gelu", "flash", "logistic", "one_pass", "scores", "sums")


@pytest.fixture(scope="module")
def answers():
    """profile -> what the reference answers under it"""
    return {name: expected_of(numerics, FEW) for name, numerics in PROFILES.items()}


def values(answered) -> dict:
    return {(finding.op, finding.aspect): finding.value for finding in answered.findings}


def probes_of(op: str):
    return [probe for probe in FEW if probe.op == op and not probe.name.startswith(("order", "subnormal"))]


def test_every_question_is_answered(answers):
    for answered in answers.values():
        assert not answered.refused and not answered.failed
    assert {finding.op for finding in answers["float32"].findings} == set(OPS)


def test_each_profile_is_told_from_every_other(answers):
    seen = {
        name: frozenset((f.op, f.aspect, f.value) for f in answered.findings if f.declared)
        for name, answered in answers.items()
    }
    assert len(set(seen.values())) == len(PROFILES)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_written_down_as_it_is(answers, name):
    """From a profile that says otherwise: nothing but the answers leads back."""
    for like in (FLOAT32, GGML_CPU):
        numerics, fragment = described(answers[name], like)
        assert fragment["like"] == like.name
        assert {field: getattr(numerics, field) for field in SAID} == {
            field: getattr(PROFILES[name], field) for field in SAID
        }
        if PROFILES[name].flash:
            assert numerics.flash_sum == PROFILES[name].flash_sum
        asked = ("f16", "q8_0", "q4_1", "q4_k")
        assert all(numerics.activations.get(kind) == PROFILES[name].activations.get(kind) for kind in asked)
        assert (numerics.convolution == "winograd-f16") == (name == "winograd-f16")


KNOWN = {
    "float64": {("linear", "sum"): "float64", ("silu", "result"): "float64"},
    "float32": {("conv2d", "algorithm"): "Winograd F(4x4) in float32", ("linear", "activations"): "float32"},
    "torch-f16": {("linear", "result"): "float16", ("linear", "sum"): "float32", ("attention", "mask"): "float16"},
    "torch-bf16": {("linear", "weights"): "bfloat16", ("conv2d", "sum"): "float32", ("gelu", "result"): "bfloat16"},
    "torch-tf32": {("linear", "activations"): "tf32", ("linear", "result"): "float32", ("attention", "v"): "tf32"},
    "torch-f16-sums": {("linear", "sum"): "float16, 16 products at once", ("conv2d", "sum"): "float32"},
    "torch-bf16-channels-last": {("group_norm", "variance"): "E[x^2] - E[x]^2"},
    "ggml-cpu": {
        ("linear", "activations"): "float32",
        ("linear", "activations, f16 weights"): "float16",
        ("linear", "activations, q8_0 weights"): "8 bits in blocks of 32",
        ("linear", "activations, q4_k weights"): "8 bits in blocks of 256",
        ("conv2d", "activations"): "float16",
        ("gelu_tanh", "input"): "float16",
        ("silu", "input"): "float32",
    },
    "ggml-cpu-flash": {("attention", "mask"): "float16", ("attention", "sum of values"): "float16"},
    "winograd-f16": {("conv2d", "algorithm"): "Winograd F(2x2) in 16 bits"},
}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_found_is_what_the_profile_declares(answers, name):
    found = values(answers[name])
    assert {key: found[key] for key in KNOWN[name]} == KNOWN[name]


@pytest.mark.parametrize(
    ("compute", "shown"), [("float64", "2^24 counted as 1 at every"), ("float32", "2^24 counted as 0")]
)
def test_attentions_sum_of_scores_is_told_by_what_was_asked(compute, shown):
    answered = expected_of(
        replace(FLOAT64, name="mine", storage="float32", compute=compute), probes_of("attention")
    )
    finding = next(f for f in answered.findings if f.aspect == "sum of scores")
    assert finding.value == compute and shown in finding.evidence
    assert described(answered, FLOAT32)[0].compute == compute


def test_attention_whose_sums_alone_are_in_float64_computes_in_float32(answers):
    """Its scores are stored in float32: the bound of float64 has no room for what that rounds."""
    found = [f for f in answers["float64"].findings if f.op == "attention"]
    stored_scores = [
        msgspec.structs.replace(f, value="float32") if f.aspect == "probabilities" else f for f in found
    ]
    assert described(Answers(stored_scores), FLOAT32)[0].compute == "float32"
    assert described(Answers(found), FLOAT32)[0].compute == "float64"


@pytest.mark.parametrize(("step", "run"), [(1, 0), (2, 0), (8, 32), (16, 0), (1, 16)])
def test_sums_in_float16_are_counted(step, run):
    sums = {"linear": Float16Sums(step, run)}
    probes = [probe for probe in probes_of("linear") if probe.name == "sum"]
    answered = expected_of(replace(TORCH_F16, name="mine", sums=sums), probes)
    assert described(answered, TORCH_F16)[0].sums == sums


def test_sums_in_float16_of_factors_that_are_not_are_left_unsaid(answers):
    """Also where the nearest profile has such sums."""
    found = [
        msgspec.structs.replace(f, value="float32") if f.op == "linear" and f.aspect.startswith("activ") else f
        for f in answers["ggml-vulkan"].findings
    ]
    numerics, fragment = described(Answers(found), PROFILES["ggml-vulkan"])
    assert (numerics.products, numerics.sums, fragment.get("sums")) == (None, {}, {})


class _HalfSums:
    """float32 tensors of any range; one operation's sum is rounded to float16 after each product."""

    name, version = "half-sums", "1"

    def __init__(self, op):
        self._op = op

    def refuses(self, case):
        return None if case.op == self._op else f"no {case.op}"

    def numerics(self, case):
        return FLOAT32

    def deviations(self, case):
        return ()

    def run(self, case, inputs):
        x, w = (inputs[name].values().astype(np.float32) for name in ("x", "weight"))
        if case.op == "conv2d":
            if case.params.get("stride", 1) != w.shape[2] or any(case.params.get("padding", ())):
                raise EngineFailure("windows side by side alone")
            N, C, H, W = x.shape
            R, S = w.shape[2:]
            x = x.reshape(N, C, H // R, R, W // S, S).transpose(0, 2, 4, 1, 3, 5).reshape(N, H // R, W // S, -1)
        w = w.reshape(len(w), -1)
        y = np.zeros((*x.shape[:-1], len(w)), np.float32)
        for k in range(x.shape[-1]):
            with np.errstate(over="ignore"):
                y = (y + x[..., k, None] * w[:, k]).astype(np.float16).astype(np.float32)
        y = y + (inputs["bias"].values() if "bias" in inputs else 0)
        return {"y": np.ascontiguousarray(np.moveaxis(y, -1, 1)) if case.op == "conv2d" else y}


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("linear", {"like": "float32", "products": "f16", "sums": {"linear": {"step": 1, "run": 0}}}),
        ("conv2d", {"like": "float32", "conv": "f16", "sums": {"conv": {"step": 1, "run": 0}}}),
    ],
)
def test_sums_in_float16_over_float32_tensors_have_a_declaration(op, said):
    """A narrow sum hides the last bits of the factors; their range tells that they are not float16."""
    engine, probes = _HalfSums(op), probes_of(op)
    assert conclude(engine, ask_all(engine, probes), probes).numerics == said


def test_the_nearest_profile_is_named(answers):
    odd = replace(TORCH_BF16, name="odd", sums={}, one_pass=("layer_norm",))
    probes = [probe for probe in FEW if probe.op in ("gelu", "layer_norm", "group_norm")]
    answered = expected_of(odd, probes)
    held = matches(answered, probes)
    assert held[0].profile == "torch-bf16"
    assert [(one.op, one.aspect) for one in held[0].disagreements] == [("layer_norm", "variance")]
    numerics, fragment = described(answered, TORCH_BF16)
    assert fragment == {"like": "torch-bf16", "one_pass": ["layer_norm"]}
    assert against(answered, numerics, probes) == []


class Pretender(Reference):
    """Computes as `numerics`, declares `says`."""

    name = "pretender"

    def __init__(self, numerics, says):
        super().__init__(numerics)
        self.says = says

    def numerics(self, case):
        return self.says


@pytest.mark.parametrize(
    ("numerics", "says", "op", "wrong"),
    [
        (TORCH_F16, FLOAT32, "linear", ("linear", "activations", "float16", "float32")),
        (FLOAT32, TORCH_F16, "linear", ("linear", "activations", "float32", "float16")),
        (GGML_CPU, FLOAT32, "gelu_tanh", ("gelu_tanh", "input", "float16", "float32")),
        (PROFILES["ggml-cpu-flash"], GGML_CPU, "attention", ("attention", "sum of values", "float16", "float32")),
        (PROFILES["torch-tf32"], FLOAT32, "conv2d", ("conv2d", "activations", "tf32", "float32")),
    ],
)
def test_a_wrong_declaration_is_found(numerics, says, op, wrong):
    engine = Pretender(numerics, says)
    declaration = against_declaration(engine, ask_all(engine, probes_of(op)), probes_of(op))
    assert declaration.numerics == [says.name]
    assert wrong in [(one.op, one.aspect, one.found, one.expected) for one in declaration.disagreements]


class _OtherCodes(Reference):
    """Computes as ggml's CPU backend, but for the codes of activations in blocks of 8 bits.

    bug: a key of golden/block_activations.py
    """

    def __init__(self, bug: str):
        super().__init__(GGML_CPU)
        self.bug = bug

    def run(self, case, inputs):
        x = inputs["x"].values()
        block = block_of(GGML_CPU.input_of(inputs["weight"].product_type))
        if not block or x.shape[-1] % block:
            return super().run(case, inputs)
        moved = dict(moved_otherwise(x, block))[self.bug].astype(np.float32)
        return Reference(FLOAT32).run(case, {**inputs, "x": stored(moved)})


@pytest.mark.parametrize(
    ("bug", "suffix"), [*zip(OTHERWISE, (", rounded toward zero", ", a scale of max |x| / 128"), strict=True)]
)
def test_other_codes_of_activations_in_blocks_are_told(bug, suffix):
    probes = [probe for probe in FEW if probe.name in ("q8_0 weights", "q4_1 weights", "q4_k weights")]
    engine = _OtherCodes(bug)
    answered = ask_all(engine, probes)
    blocks = {"q8_0": 32, "q4_1": 32, "q4_k": 256}
    for kind, block in blocks.items():
        found = values(answered)["linear", f"activations, {kind} weights"]
        assert found in (f"8 bits in blocks of {block}{suffix}", f"int8, a scale every {block}{suffix}")
    wrong = against_declaration(engine, answered, probes).disagreements
    assert {one.aspect for one in wrong} >= {f"activations, {kind} weights" for kind in blocks}


_ROUNDING = [p for p in probes_of("linear") if p.name not in ("products", "q8_0 weights", "q4_1 weights")]
# Where results are narrow, their quotients show; fewest rows show in any storage.
_TOLD = [
    *product(RULES.values(), (FLOAT32, TORCH_F16, TORCH_BF16)),
    (SDNQ_ROWS, TORCH_F16),
    (LLM_ROWS, TORCH_F16),
    (SDNQ_FP8, TORCH_BF16),
]
_TOLD += [(replace(SDNQ_ROWS, fewest=0), TORCH_BF16), (replace(LLM_ROWS, outliers=7.5), TORCH_BF16)]
_TOLD += [(replace(INT8_ROWS, fewest=rows), FLOAT32) for rows in (2, 17, 32)]


@functools.cache
def _found_in(profile: str) -> dict:
    return values(expected_of(PROFILES[profile], _ROUNDING))


@pytest.mark.parametrize(("rule", "storage"), _TOLD, ids=lambda one: getattr(one, "name", str(one)))
def test_activations_in_few_bits_are_told(rule, storage):
    """Type, scale and rounding; sum, weights and result are the storage's, though large numbers set scales."""
    numerics = replace(storage, name="mine", activations={"f32": rule, "f16": rule})
    answered = expected_of(numerics, _ROUNDING)
    found, plain = values(answered), _found_in(storage.name)
    assert found["linear", "activations"] == found["linear", "activations, f16 weights"] == str(rule)
    few = {key for key in found if key[1].startswith("activations")}
    if rule.block:  # weights and sums are hidden
        plain = {key: plain[key] for key in found}
    assert {key: found[key] for key in found.keys() - few} == {key: plain[key] for key in found.keys() - few}
    numerics, fragment = described(answered, storage)
    assert numerics.activations["f32"] == rule and fragment["activations"]["f32"]["type"] == rule.type
    text = {"protocol": 1, "name": "mine", "version": "1", "ops": {"linear": {"numerics": fragment}}}
    declared = read_description(json.dumps(text).encode()).numerics_of("linear")
    assert declared.activations["f32"] == rule, "what is told may be declared"
    assert against(answered, numerics, _ROUNDING) == []


@pytest.mark.parametrize("kind", few_bits.TYPES)
def test_weights_in_few_bits_are_read_as_the_identity(kind):
    assert (few_bits.identity(kind).values() == np.eye(64)).all()


def test_winograd_in_float32_is_the_engines_choice():
    engine, probes = Pretender(FLOAT32, PROFILES["torch-f32"]), probes_of("conv2d")
    assert not against_declaration(engine, ask_all(engine, probes), probes).disagreements


class Broken(Reference):
    """Refuses blocks, dies at bfloat16 weights, answers softmax in another shape."""

    name = "broken"

    def refuses(self, case):
        return "no blocks" if any(r.type.startswith("q") for r in case.inputs.values()) else None

    def run(self, case, inputs):
        if any(tensor.type == "f16" for tensor in inputs.values()):
            raise EngineFailure("ended by SIGSEGV")
        y = super().run(case, inputs)
        return {"y": y["y"][:1]} if case.op == "softmax" else y


def test_refusals_and_crashes_are_named_and_the_rest_is_asked():
    engine = Broken(FLOAT64)
    probes = [probe for probe in (*probes_of("linear"), *probes_of("softmax")) if probe.name != "weights"]
    answered = ask_all(engine, probes)
    assert {one.why for one in answered.refused} == {"no blocks"}
    assert {(one.op, one.why.partition(":")[0]) for one in answered.failed} == {
        ("linear", "ended by SIGSEGV"),
        ("softmax", "softmax"),
    }
    assert values(answered)["linear", "sum"] == "float64"
    report = conclude(engine, answered, probes)
    assert not report.agrees and not report.declaration.disagreements
    assert any("SIGSEGV" in line for line in as_lines(report))


class Noise(Reference):
    """Answers NaN, or random numbers: no question may fall over them."""

    def __init__(self, fill):
        super().__init__(FLOAT64)
        self.fill = fill

    def run(self, case, inputs):
        return {"y": self.fill(super().run(case, inputs)["y"].shape)}


@pytest.mark.parametrize("fill", [lambda s: np.full(s, np.nan), np.zeros, np.random.default_rng(1).standard_normal])
def test_nonsense_is_reported_not_raised(fill):
    answered = ask_all(Noise(fill), FEW)
    assert not answered.failed and not answered.refused
    assert sum(finding.value == "float32" for finding in answered.findings) < len(answered.findings) / 2


# --- the command

PROGRAM = """
import json, sys
import numpy as np
from safetensors.numpy import load_file, save_file
for line in sys.stdin:
    request = json.loads(line)
    if request["request"] == "describe":
        ops = {"linear": {"types": ["f32"]}}
        json.dump({"protocol": 1, "name": "mine", "version": "1", "serve": True, "ops": ops,
                   "numerics": NUMERICS}, open(request["output"], "w"))
        continue
    t = load_file(request["inputs"])
    x, w = (t[name].astype(np.float16).astype(np.float32) for name in ("x", "weight"))
    save_file({"y": x @ w.T}, request["output"])
    print(json.dumps({"done": request["case"]}), flush=True)
"""


def profile(*arguments: str):
    return CliRunner().invoke(app, ["profile", *arguments])


@pytest.mark.parametrize(("says", "code"), [("float32", 1), ({"like": "float32", "products": "f16"}, 0)])
def test_an_exec_engine_is_held_to_its_description(tmp_path, says, code):
    path = tmp_path / "engine.py"
    path.write_text(PROGRAM.replace("NUMERICS", repr(says)))
    done = profile(f"exec:{sys.executable} {path}", "--ops", "linear", "--json")
    assert done.exit_code == code, done.output
    report = json.loads(done.stdout)
    wrong = {(one["aspect"], one["found"]) for one in report["declaration"]["disagreements"]}
    assert wrong == ({("activations", "float16"), ("weights", "float16")} if code else set())
    # What it should declare can be put into the description as it is printed.
    assert report["numerics"].get("products") == "f16" and report["unsaid"] == []


def test_the_command_names_a_profile():
    done = profile("refsd:torch-tf32", "--ops", "conv2d")
    assert done.exit_code == 0
    assert "agrees with torch-tf32\n" in done.stdout and "1 + 2^-11 came back as 1" in done.stdout
    where = "to declare it in an exec engine's description, in ops.conv2d: "
    assert done.stdout.endswith(f'{where}"numerics": "torch-tf32"\n')


def _declarations():
    """The declarations that refsd/engines/exec/protocol.md offers, for what an engine computes in."""
    page = (Path(refsd.__file__).parent / "engines/exec/protocol.md").read_text(encoding="utf-8")
    table = page.partition("## numerics")[2].partition("## run")[0]
    rows = [line.split(" | ") for line in table.splitlines() if "| `" in line]
    return [(what, said) for what, cell in rows for said in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize(("what", "said"), _declarations())
def test_what_the_protocol_offers_is_what_an_engine_that_computes_so_is_found_to_do(what, said):
    """Read as a description's, answered by the reference, and told back by the probes as the same numerics."""
    told = json.loads(said)
    ops = {op: {"numerics": told} for op in ("linear", "conv2d", "attention", "layer_norm", "group_norm")}
    text = {"protocol": 1, "name": "sample", "version": "1", "ops": ops}
    declared = read_description(json.dumps(text).encode()).numerics_of("linear")
    assert (declared == FLOAT32) == (told == "float32")
    op = _ASKED.get(max(told, key=lambda field: field in _ASKED) if isinstance(told, dict) else "", "linear")
    # silu's result shows the storage type, whatever the sums are rounded to.
    names = ("order", "subnormal")
    probes = [probe for probe in PROBES if probe.op in (op, "silu") and not probe.name.startswith(names)]
    numerics, fragment = described(expected_of(declared, probes), FLOAT32)
    assert against(expected_of(declared, probes), numerics, probes) == []
    assert set(told if isinstance(told, dict) else ()) <= {*fragment}, "a field that is not found"


# Field of a declaration -> the operation whose answers show it; the others show in linear.
_ASKED = {"conv": "conv2d", "one_pass": "layer_norm", "flash": "attention"}


def test_operations_are_named_with_commas_or_one_by_one():
    for ops in (("--ops", "softmax,silu"), ("--ops", "softmax", "--ops", "silu")):
        found = json.loads(profile("refsd:float32", *ops, "--json").stdout)["findings"]
        assert {finding["op"] for finding in found} == {"softmax", "silu"}


@pytest.mark.parametrize("arguments", [("refsd:torch-f31",), ("refsd:float32", "--ops", "linaer")])
def test_bad_usage(arguments):
    done = profile(*arguments)
    assert (done.exit_code != 0 and "torch-f32" in str(done.exception)) or "linear" in str(done.exception)
