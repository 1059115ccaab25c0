"""Requests for a precision: what is asked of ggml, what the engines declare, and engines that ignore it."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from injection import Injected, wrong_operation

from refsd.cases import CASES, select
from refsd.engines import registry
from refsd.engines.ggml import engine as ggml
from refsd.engines.ggml.devices import Device
from refsd.engines.ggml.ops import REQUESTED_BUILDERS
from refsd.engines.ggml.requests import PREFIX, REQUESTS, calls, request_of
from refsd.engines.reference import Reference
from refsd.golden import conform, operations
from refsd.golden.case import Case
from refsd.golden.engine import EngineSearch
from refsd.golden.recipe import Recipe
from refsd.judges import judges
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import GGML_CPU_FLASH, Float16Sums
from refsd.shrinking.ggml_program import Program
from refsd.weights.recipe_files import RecipeFiles

_F32, _BF16, _F16, _Q8 = 10, 15, 20, 30  # ggml.h


@pytest.mark.parametrize(
    ("name", "sums", "factor"),
    [("f32", _F32, _F32), ("bf16", _BF16, _BF16), ("f16", _F16, _F16), ("q8", _F32, _Q8)],
)
def test_what_is_requested_of_a_node(name, sums, factor):
    wish = REQUESTS[name]
    assert calls("MUL_MAT", wish, True) == [("ggml_prec_set_acc", (sums,)), ("ggml_prec_set_src", (factor, 1))]
    assert calls("FLASH_ATTN_EXT", wish, True) == [("ggml_prec_set_acc", (sums,))]
    assert calls("ADD", wish, True) == []


def test_older_versions_take_a_request_for_sums():
    assert calls("MUL_MAT", REQUESTS["f32"], False) == [("ggml_mul_mat_set_prec", (_F32,))]
    assert calls("FLASH_ATTN_EXT", REQUESTS["f32"], False) == [("ggml_flash_attn_ext_set_prec", (_F32,))]


def test_other_engines_request_nothing():
    assert [request_of(name) for name in ("ggml", "ggml-flash", "ggml-prec-f64")] == [None] * 3
    assert request_of("ggml-prec-q8") == REQUESTS["q8"]


class Stub:
    """What GgmlLibrary answers of a CPU whose flash attention sums in float16, without a library."""

    version, lacks, f16_lanes = "0", (), 0
    device = Device("CPU", "a processor", "CPU")
    ops = {PREFIX + one: list(REQUESTED_BUILDERS) for one in REQUESTS}  # noqa: RUF012

    def __init__(self, requests):
        self.requests = list(requests)

    def sums_flash_in_f16(self, L, J, D, E):
        return True


def _engine(name, requests=tuple(REQUESTS)):
    return ggml.GgmlEngine(PREFIX + name, cast(Any, Stub(requests)))


def _case(op, **inputs):
    return Case(op, op, {name: Recipe(*recipe) for name, recipe in inputs.items()})


def _linear(weight, K=256):
    return _case("linear", x=((3, K),), weight=((5, K), weight))


_ATTENTION = _case("attention", q=((1, 5, 1, 40),), k=((1, 7, 1, 40),), v=((1, 7, 1, 8),))


@pytest.mark.parametrize(
    ("name", "rounded"),
    [
        ("f32", {"f32": None, "f16": None, "bf16": None, "q4_k": None}),
        ("bf16", {"f32": "bf16", "f16": "bf16", "q4_k": "bf16"}),
        ("f16", {"f32": "f16", "f16": "f16", "bf16": "bf16", "q4_k": "f16"}),
        ("q8", {"f32": "q8_0", "f16": "q8_0", "q4_0": "q8_0", "q4_1": "q8_1", "q4_k": "q8_k"}),
    ],
)
def test_the_least_that_a_request_allows_is_declared(name, rounded):
    declared = {weight: _engine(name).numerics(_linear(weight)) for weight in rounded}
    assert {weight: numerics.input_of(weight) for weight, numerics in declared.items()} == rounded
    halves = {"linear": Float16Sums()} if name == "f16" else {}
    assert all(n.sums == (halves if n.input_of(w) == "f16" else {}) for w, n in declared.items())
    # Attention's factors cannot be requested: it keeps the back end's.
    attention = _engine(name).numerics(_ATTENTION)
    assert (attention.flash, attention.flash_sum) == ("f16", "f16" if name == "f16" else None)


def test_rows_of_no_whole_blocks_are_not_declared_in_8_bits():
    assert _engine("q8").numerics(_linear("f16", 77)).input_of("f16") == "bf16"


def test_an_older_library_rounds_activations_as_it_likes():
    numerics = _engine("f32", ["f32"]).numerics(_linear("q4_k"))
    assert numerics.input_of("q4_k") == "q8_k" and numerics.requested == {"sums": "F32"}


def test_they_are_asked_by_name_alone(monkeypatch):
    both = [EngineSearch("ggml", None), EngineSearch("ggml-prec-f32", cast(Any, object()), only_by_name=True)]
    monkeypatch.setattr(registry.load("ggml"), "find", lambda **_: both)
    assert [one.name for one in registry.find("ggml")] == ["ggml"]
    assert "ggml-prec-f32" in [one.name for one in registry.find("ggml-prec-f32")]
    with pytest.raises(BadInput, match="ggml gives"):
        monkeypatch.setattr(registry.load("ggml"), "find", lambda **_: both[1:])
        registry.find("ggml-prec-f64")


def test_the_program_of_a_failure_requests_it_too():
    program, inputs = Program(REQUESTS["q8"]), _linear("q4_0").realize()
    REQUESTED_BUILDERS["linear"].build(cast(Any, program), inputs, operations.complete("linear", inputs, {}))
    (product,) = [line for line in program.lines if "ggml_mul_mat(" in line]
    after = program.lines[program.lines.index(product) + 1 :]
    assert [line.strip() for line in after[:2]] == [
        "ggml_prec_set_acc(t2, (ggml_prec) 10);",
        "ggml_prec_set_src(t2, (ggml_prec) 30, 1);",
    ]


class Ignoring:
    """A back end that computes as it always does, whatever is requested."""

    version = "1"

    def __init__(self, name, answer):
        self.name, self.answer = name, answer
        self.requesting = _engine("f32")

    def refuses(self, case):
        return None

    def numerics(self, case):
        return self.requesting.numerics(case)

    def deviations(self, case):
        return ()

    def run(self, case, inputs):
        return {"y": self.answer({name: each.values().astype(np.float32) for name, each in inputs.items()})}


def _online(inputs, tile, sums):
    """Fused attention, `tile` keys at a time, whose running sum of values is held in a dtype."""
    q, k, v = (inputs[name].astype(np.float16).astype(np.float32).swapaxes(1, 2) for name in ("q", "k", "v"))
    scores = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    peak, total = np.full((*scores.shape[:-1], 1), -np.inf, np.float32), np.float32(0)
    y = np.zeros((*scores.shape[:-1], v.shape[-1]), sums)
    for first in range(0, scores.shape[-1], tile):
        part = scores[..., first : first + tile]
        new = np.maximum(peak, part.max(axis=-1, keepdims=True))
        p = np.exp(part - new)
        y = (y * np.exp(peak - new) + p @ v[..., first : first + tile, :]).astype(sums)
        total, peak = total * np.exp(peak - new) + p.sum(axis=-1, keepdims=True), new
    return (y.astype(np.float32) / total).swapaxes(1, 2)


def _judged(engine, names):
    truth = Reference()
    runner = conform.Runner(judges(None), lambda case: truth.run(case, case.realize()), [])
    return conform.run(runner, [engine], [CASES[name] for name in names])


_SUMS = ["attention/f16/sums-b1-l20-j320-h2-d40"]


@pytest.mark.parametrize(
    ("bug", "tile"),
    [("stable-diffusion.cpp#2003: ROCm's tile kernel", 32), ("llama.cpp#28124: Vulkan's scalar kernel", 1)],
)
def test_sums_in_float16_though_float32_was_requested(bug, tile):
    (wrong,) = _judged(Ignoring(bug, lambda inputs: _online(inputs, tile, np.float16)), _SUMS)
    assert wrong.status == "fail"
    assert wrong.causes == ("the request for F32 sums is ignored: they are in float16",)


@pytest.mark.parametrize("tile", [32, 1])
def test_sums_in_float32_as_requested(tile):
    (right,) = _judged(Ignoring("honest", lambda inputs: _online(inputs, tile, np.float32)), _SUMS)
    assert right.status == "pass", right.reason


def test_activations_in_float16_though_float32_was_requested():
    def answer(inputs):
        y = inputs["x"].astype(np.float16).astype(np.float32) @ inputs["weight"].T
        return y + inputs["bias"] if "bias" in inputs else y

    names = [case.name for case in select("linear/f16/tokens*") + select("linear/f16/awkward*")]
    results = _judged(Ignoring("rounds", answer), names)
    assert [r.causes for r in results] == [
        ("the request for F32 activations is ignored: they are rounded to f16",)
    ] * len(names)


_REQUESTED = replace(
    GGML_CPU_FLASH, name="ggml-cpu-flash, F32 sums requested", flash_sum=None, requested={"sums": "F32"}
)


@pytest.mark.jitted
@pytest.mark.parametrize("name", ["zimage/zimage/loud", "flux/schnell/256-tokens"])
def test_a_model_whose_attention_ignores_the_request(name, tmp_path):
    """The first attention is named, not what comes after it."""

    def attention(self, right, *arguments, **named):
        return Arithmetic(replace(self.numerics, flash_sum="f16")).attention(*arguments, **named)

    files = RecipeFiles(tmp_path)
    truth = Reference(model_files=files)
    runner = conform.Runner(judges(files), lambda case: truth.run(case, case.realize()), [])
    (wrong,) = conform.run(
        runner, [Injected(wrong_operation(attention=attention), _REQUESTED, files)], [CASES[name]]
    )
    assert wrong.status == "fail" and wrong.place.endswith("attention"), (wrong.place, wrong.causes)
    assert wrong.causes == ("the request for F32 sums is ignored: they are in float16",)
