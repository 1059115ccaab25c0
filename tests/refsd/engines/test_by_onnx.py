"""Cases of operations through ONNX, judged."""

import numpy as np
import onnxruntime
import pytest

from refsd.cases import CASES
from refsd.engines import registry
from refsd.engines.by_onnx import Elsewhere, OnnxEngine, missing
from refsd.engines.onnxruntime import ran_elsewhere
from refsd.engines.reference import Reference
from refsd.golden import conform
from refsd.golden.operations import OPERATIONS
from refsd.judges import judges
from refsd.numerics.processor import cpu_features
from refsd.numerics.profiles import ONNX_F32
from refsd.onnx.builder import Builder
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
    """Products that round activations to other than int8 are not: ONNX has no such operators."""
    few_bits = {
        "linear_w4a8",
        "linear_w4a4",
        "linear_svdquant",
        "linear_fp8",
        "linear_nvfp4",
        "linear_mxfp8",
        "linear_mxfp4",
    }
    few_bits |= {"linear_fp8_blocks", "attention_int8"}
    assert {*OPERATIONS} - {*FUNCTIONS} == few_bits
    assert {*FUNCTIONS} <= {*OPERATIONS}


@pytest.mark.parametrize("op", SMALL)
def test_operations(engines, runner, op):
    results = [r for r in conform.run(runner, engines, [SMALL[op]]) if r.engine in ENGINES]
    declined = ("onnxruntime",) if op == "linear_w4a16" else ()  # onnxruntime-f32 answers it
    expected = [(name, "refused" if name in declined else "pass") for name in ENGINES]
    assert [(r.engine, r.status) for r in results] == expected


@pytest.mark.parametrize("kind", ["q4_0", "q8_0"])
def test_activations_in_8_bits_are_declared_or_named(engines, runner, monkeypatch, kind):
    case = CASES[f"linear/{kind}/odd-x7x160-o33"]
    _, rounding, exact, integers = engines
    assert [(r.engine, r.status) for r in conform.run(runner, engines, [case])] == [
        ("onnx-reference", "pass"),
        ("onnxruntime", "pass"),
        ("onnxruntime-f32", "pass"),
        ("onnxruntime-qdq", "refused"),
    ]
    assert integers.refuses(case) == "it is no product of integers"
    assert exact.refuses(CASES["silu/f32/bend-x33x77"]) == "it has no weights in blocks"
    monkeypatch.setattr(rounding, "_numerics", exact.numerics(case))
    (result,) = conform.run(runner, [rounding], [case])
    # Seen on a processor with AVX2 alone. Where onnxruntime has no such kernel, it rounds nothing.
    rounds = "avx2" in cpu_features() and "avx512f" not in cpu_features()
    named = ("fail", ("activations rounded to int8, a scale every 32",))
    assert (result.status, result.causes) == named or (result.status == "pass" and not rounds)


@pytest.mark.skipif("avx2" not in cpu_features(), reason="no x86 processor with AVX2")
def test_uint8_times_int8_is_cut_to_16_bits_where_the_processor_has_no_vnni():
    """docs/findings/onnxruntime-uint8-int8-saturation.md: two products at a time."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(100, 256, (3, 64)).astype(np.uint8), rng.integers(60, 128, (64, 5)).astype(np.int8)
    builder = Builder("product")
    given = builder.input("a", a.dtype, a.shape)
    builder.output(builder.node("MatMulInteger", given, builder.constant(b)), "y")
    model = builder.model().SerializeToString()
    (y,) = onnxruntime.InferenceSession(model).run(None, {"a": a})
    products = a.astype(np.int64)[:, :, None] * b
    pairs = products.reshape(3, 32, 2, 5).sum(axis=2)
    vnni = cpu_features() & {"avx_vnni", "avx512_vnni"}
    np.testing.assert_array_equal(y, (pairs if vnni else np.minimum(pairs, 32767)).sum(axis=1))
    assert vnni or (y != products.sum(axis=1)).all()
    # As the engines ask for it.
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    (y,) = onnxruntime.InferenceSession(model, options).run(None, {"a": a})
    np.testing.assert_array_equal(y, products.sum(axis=1))


QUANTIZED = [
    case.name
    for case in OPERATIONS["linear_int8"].cases
    if "x_scale" in case.inputs or (case.params.get("zero_point") and case.params.get("scales") == "tensor")
]
CONVOLVED = [
    case.name
    for case in OPERATIONS["conv2d_int8"].cases
    if (case.params.get("zero_point") and "x_scale" not in case.inputs) or "y_scale" in case.inputs
]


@pytest.mark.parametrize("name", [*QUANTIZED, *CONVOLVED])
def test_products_as_quantising_tools_write_them(engines, runner, name):
    """onnxruntime makes one node of them, whose sum is exact: as floats they would not be within the bound."""
    *_, engine = engines
    (result,) = conform.run(runner, [engine], [CASES[name]])
    assert (engine.name, result.status) == ("onnxruntime-qdq", "pass")


def test_what_no_tool_writes_is_refused(engines):
    *_, engine = engines
    cases = [case for op in ("linear_int8", "conv2d_int8") for case in OPERATIONS[op].cases]
    assert {case.name for case in cases if not engine.refuses(case)} == {*QUANTIZED, *CONVOLVED}
    given = engine.refuses(next(case for case in cases if case.name.startswith("conv2d_int8/given-ties")))
    assert given is not None and given.startswith("between QuantizeLinear and DequantizeLinear it convolves floats")


@pytest.mark.parametrize("op", ["linear_int8", "conv2d_int8"])
def test_zero_points(engines, runner, op):
    cases = [case for case in OPERATIONS[op].cases if case.params.get("zero_point")]
    results = conform.run(runner._replace(explains=False), engines[:2], cases)
    assert len(results) == 2 * len(cases)
    assert [(r.engine, r.case) for r in results if r.status != "pass"] == []


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
    assert [found.name for found in registry.find("onnxruntime@cpu")] == [
        "onnxruntime",
        "onnxruntime-f32",
        "onnxruntime-qdq",
    ]
    (found,) = registry.find("onnxruntime@WebGPU")
    assert found.why_not.startswith("this onnxruntime has no WebGPU, only ")
