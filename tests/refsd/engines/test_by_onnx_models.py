"""Models through ONNX, judged tap by tap: they conform; a wrong constant and a wrong fusion are found."""

import pytest

from refsd.cases import CASES
from refsd.engines import registry
from refsd.engines.by_onnx import USUAL
from refsd.engines.reference import Reference
from refsd.golden import conform
from refsd.golden.usual_cases import notes, unusual
from refsd.judges import judges
from refsd.onnx.trace import model_graph as tracing
from refsd.weights.model_files import model_files

pytestmark = pytest.mark.jitted  # a whole model

CASE = CASES["clip-l/clip/ended"]
NORM = "text_model.encoder.layers.0.layer_norm2"


def engines(*names):
    return [
        found.engine for name in names for found in registry.find(name, model_files=model_files) if found.engine
    ]


@pytest.fixture(scope="module")
def onnxruntime():
    return engines("onnxruntime")[0]


@pytest.fixture(scope="module")
def runner():
    reference = Reference(model_files=model_files)
    truth = {case.name: reference.run(case, case.realize()) for case in (CASE,)}
    return conform.Runner(judges(model_files), lambda case: truth[case.name])


def test_a_model_conforms(onnxruntime, runner):
    answers = []
    measured = runner._replace(measured=answers.append)
    results = conform.run(measured, [onnxruntime, *engines("onnx-reference")], [CASE])
    assert [(r.engine, r.status) for r in results] == [("onnxruntime", "pass"), ("onnx-reference", "pass")]
    for answered in answers:
        assert {*answered.actual} == {"last_hidden_state", "pooled"}
        assert [m.output for m in answered.examined.trace.taps] == [*answered.taps, *answered.actual]
        assert len(answered.taps) > 30


def test_a_wrong_constant_of_the_graph_is_placed_and_named(onnxruntime, runner, monkeypatch):
    right = tracing.model_graph

    def eps_ten_times_too_large(*arguments, **options):
        graph = right(*arguments, **options)
        (node,) = (node for node in graph.model.graph.node if node.name == NORM)
        (eps,) = (attribute for attribute in node.attribute if attribute.name == "epsilon")
        eps.f *= 10
        return graph

    monkeypatch.setattr(tracing, "model_graph", eps_ten_times_too_large)
    monkeypatch.setattr(onnxruntime, "_traced", None)
    (result,) = conform.run(runner, [onnxruntime], [CASE])
    monkeypatch.setattr(onnxruntime, "_traced", None)
    assert (result.status, result.place, result.causes) == ("fail", NORM, ("eps ten times too large",))
    # Forced to the reference's tensors, nothing behind it is wrong either.
    assert "; forced to the reference's tensors, 1 of " in result.reason and result.reason.endswith(f" {NORM}")


def test_an_error_without_taps_is_a_fusion_and_the_tap_that_ends_it_is_named(onnxruntime, runner, monkeypatch):
    right = onnxruntime.run_with

    def fused_wrongly(case, inputs, taps):
        return {name: y * (1 if NORM in taps else 1.01) for name, y in right(case, inputs, taps).items()}

    monkeypatch.setattr(onnxruntime, "run_with", fused_wrongly)
    (result,) = conform.run(runner, [onnxruntime], [CASE])
    assert (result.status, result.place) == ("fail", "last_hidden_state")
    assert result.reason.endswith(f"so a fused operation is wrong; requesting {NORM} makes it right")


def test_a_run_without_cases_asks_few_models(onnxruntime):
    assert {*USUAL} <= {*CASES}
    cases = [CASES[name] for name in (*USUAL, CASE.name, "silu/f32/bend-x33x77", "full/sd15/clip/long")]
    left_out = unusual([Reference(), onnxruntime], cases)
    assert left_out == {"onnxruntime": {CASE.name, "full/sd15/clip/long"}}
    (line,) = notes(left_out)
    assert line.startswith("onnxruntime also takes 2 cases that are judged only where they are named: --cases")


def test_what_refsd_cannot_write_is_not_judged(onnxruntime, runner, monkeypatch):
    """The engine has seen nothing of it: the tracer's own error is no failure of the engine's."""

    def fails(*arguments, **options):
        raise TypeError("no node for NumPy's median")

    monkeypatch.setattr(tracing, "model_graph", fails)
    monkeypatch.setattr(onnxruntime, "_traced", None)
    (result,) = conform.run(runner, [onnxruntime], [CASE])
    assert (result.status, result.conforms) == ("refused", True)
    assert result.reason == "not judged: refsd cannot write it in ONNX: TypeError: no node for NumPy's median"


def test_models_need_a_folder_and_fit_in_a_message(onnxruntime):
    without = next(found.engine for found in registry.find("onnxruntime") if found.engine)
    assert without.refuses(CASE) == "no folder to write the model's weights to"
    assert onnxruntime.refuses(CASES["full/sdxl/unet"]) == "its graph is larger than a message of protobuf"
    assert onnxruntime.refuses(CASES["full/sd15/clip/long"]) is None
