"""Cases of operations through ONNX, judged."""

import pytest

from refsd.engines import registry
from refsd.engines.by_onnx import Elsewhere, OnnxEngine, missing
from refsd.engines.onnxruntime import ran_elsewhere
from refsd.engines.reference import Reference
from refsd.golden import conform
from refsd.golden.operations import OPERATIONS
from refsd.judges import judges
from refsd.numerics.profiles import ONNX_F32
from refsd.onnx.case_model import refuses
from refsd.onnx.operations import FUNCTIONS

ENGINES = ("onnx-reference", "onnxruntime")
# Of each operation one case that compiles little: of weights in float32, if it has such.
SMALL = {
    op: min(operation.cases, key=lambda case: sum(recipe.type != "f32" for recipe in case.inputs.values()))
    for op, operation in OPERATIONS.items()
    if not refuses(operation.cases[0])
}


@pytest.fixture(scope="module")
def engines():
    return [found.engine for name in ENGINES for found in registry.find(name)]


@pytest.fixture(scope="module")
def runner():
    truth = Reference()
    return conform.Runner(judges(None), lambda case: truth.run(case, case.realize()))


def test_every_operation_is_said():
    """Products in few bits are not: ONNX's quantised operators round activations by other rules."""
    few_bits = {"linear_int8", "linear_w4a8", "linear_svdquant", "linear_fp8", "linear_nvfp4", "attention_int8"}
    assert {*OPERATIONS} - {*FUNCTIONS} == few_bits
    assert {*FUNCTIONS} <= {*OPERATIONS}


@pytest.mark.parametrize("op", SMALL)
def test_operations(engines, runner, op):
    results = conform.run(runner, engines, [SMALL[op]])
    assert [(r.engine, r.status) for r in results] == [(engine.name, "pass") for engine in engines]


def test_blocks_that_onnx_lacks_are_refused(engines):
    case = next(case for case in OPERATIONS["dequantize"].cases if case.inputs["x"].type == "q4_k")
    assert {engine.refuses(case) for engine in engines} == {"ONNX has no q4_k"}


def test_a_package_that_is_missing_is_named():
    (found,) = missing("onnxruntime", "onnx", "no_such_package")
    assert found.engine is None
    assert found.why_not == (
        "no_such_package is not installed: in refsd's clone: uv sync --extra onnx, or pip install -e '.[onnx]'"
    )


def node(provider: str) -> dict:
    return {"cat": "Node", "args": {"op_name": "Conv", "provider": provider}}


def test_a_node_that_ran_elsewhere_is_told():
    asked = "WebGpuExecutionProvider"
    ran_elsewhere([node(asked), {"cat": "Session"}], asked)
    with pytest.raises(Elsewhere, match="a node Conv ran on CPUExecutionProvider, not on WebGpuExecutionProvider"):
        ran_elsewhere([node(asked), node("CPUExecutionProvider")], asked)
    with pytest.raises(Elsewhere, match="no node"):
        ran_elsewhere([], asked)


def test_a_provider_that_another_stands_in_for_is_refused():
    """onnxruntime warns and goes on with the CPU where a provider is not there."""
    how = {"threads": 1, "provider": "WebGpuExecutionProvider"}
    engine = OnnxEngine("onnxruntime@WebGPU", "onnxruntime", "0", ONNX_F32, how, device="WebGPU")
    why = engine.refuses(SMALL["silu"])
    assert why == "WebGpuExecutionProvider cannot start or leaves nodes to the CPU"


def test_devices_of_onnxruntime():
    assert [found.engine.name for found in registry.find("onnxruntime@cpu")] == ["onnxruntime"]
    (found,) = registry.find("onnxruntime@WebGPU")
    assert found.why_not.startswith("this onnxruntime has no WebGPU, only ")
