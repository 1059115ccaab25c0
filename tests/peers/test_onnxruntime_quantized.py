"""onnxruntime's products of integers with zero points: honest in every seed, fused, as its own tools write them."""

from dataclasses import replace

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from refsd.cases import CASES
from refsd.engines import registry
from refsd.engines.reference import Reference
from refsd.golden import conform, operations
from refsd.golden.operations import OPERATIONS
from refsd.judges import judges
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64, ONNXRUNTIME_CPU, ONNXRUNTIME_DYNAMIC, UINT8_TENSOR
from refsd.numerics.tensor import Scaling, StoredTensor, stored
from refsd.onnx.case_model import CaseModel, case_model
from refsd.profiling.few_bits import rule_of
from refsd.profiling.question import Questioner

pytestmark = pytest.mark.peer

_ZERO = [
    case for op in ("linear_int8", "conv2d_int8") for case in OPERATIONS[op].cases if case.params.get("zero_point")
]


@pytest.fixture(scope="module")
def engines():
    return {one.name: one.engine for one in registry.find("onnxruntime")}


@pytest.fixture(scope="module")
def runner(waivers):
    truth = Reference()
    return conform.Runner(judges(None), lambda case: truth.run(case, case.realize()), waivers)


@pytest.mark.parametrize("seed", range(1, 11))
def test_no_false_alarm(seed, engines, runner):
    cases = [
        msgspec.structs.replace(
            case, inputs={name: msgspec.structs.replace(recipe, seed=seed) for name, recipe in case.inputs.items()}
        )
        for case in _ZERO
    ]
    asked = [engines["onnxruntime"], engines["onnxruntime-qdq"]]
    results = conform.run(runner._replace(explains=False), asked, cases)
    assert [(r.engine, r.case, r.reason) for r in results if not r.conforms] == []
    assert sum(r.status == "pass" for r in results) >= len(cases) + 3


def _nodes(case, folder, **options) -> list[str]:
    """The operators that onnxruntime leaves of a case's graph."""
    how = onnxruntime.SessionOptions()
    how.log_severity_level = 3
    how.optimized_model_filepath = str(folder / "optimized.onnx")
    model = case_model(case, case.realize(), quantized=True).model.SerializeToString()
    onnxruntime.InferenceSession(model, how, providers=["CPUExecutionProvider"], **options)
    return [node.op_type for node in onnx.load(how.optimized_model_filepath).graph.node]


def test_its_graphs_are_fused(tmp_path):
    dynamic, given = (CASES[f"linear_int8/zero-{name}"] for name in ("tokens-x33x256-o40", "given-ties-x20x96-o33"))
    assert _nodes(dynamic, tmp_path) == ["DynamicQuantizeMatMul"]
    apart = {"disabled_optimizers": ["MatMulAddFusion"]}
    assert _nodes(given, tmp_path, **apart) == ["QuantizeLinear", "MatMulIntegerToFloat", "Add"]
    result = [case for case in _ZERO if "y_scale" in case.inputs]
    fused = [{*_nodes(case, tmp_path, **apart)} & {"QLinearMatMul", "QLinearConv"} for case in result]
    assert fused == [{"QLinearMatMul"}, {"QLinearConv"}]
    # Where this fails, a bias no longer makes it multiply floats: give up _INTEGERS.
    assert "Gemm" in _nodes(given, tmp_path)


@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8])
@pytest.mark.parametrize("per_channel", [False, True])
def test_a_model_that_its_tool_has_quantised(kind, per_channel, tmp_path):
    """The codes and zero points are the tool's: with them the answer is within a few units in the last place."""
    rng = np.random.default_rng(1)
    weight = (rng.standard_normal((96, 20)) + 0.3).astype(np.float32)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [33, size]) for n, size in (("x", 96), ("y", 20)))
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    plain, small = tmp_path / "plain.onnx", tmp_path / "small.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), plain)
    signed = {} if kind == QuantType.QUInt8 else {"reduce_range": True}
    quantize_dynamic(plain, small, weight_type=kind, per_channel=per_channel, **signed)
    written = onnx.load(small).graph
    assert {"DynamicQuantizeLinear", "MatMulInteger"} <= {node.op_type for node in written.node}
    codes, scale, zero = (
        next(numpy_helper.to_array(one) for one in written.initializer if one.name == f"w_{part}")
        for part in ("quantized", "scale", "zero_point")
    )
    given = (rng.standard_normal((33, 96)) + 0.5).astype(np.float32)
    (theirs,) = onnxruntime.InferenceSession(str(small)).run(None, {"x": given})
    inputs = {
        "x": stored(given),
        "weight": stored(np.ascontiguousarray(codes.T)),
        "weight_scale": stored(np.atleast_1d(scale).astype(np.float32)),
        "weight_zero": stored(np.atleast_1d(zero)),
    }
    params = {"scales": "tensor", "zero_point": True}
    truth = operations.run("linear_int8", Arithmetic(FLOAT64), inputs, params)["y"]
    assert (abs(theirs - truth) <= operations.bound("linear_int8", FLOAT32, inputs, params, truth).limit).all()


# --- bugs on purpose: changes of a graph, words of the cause ---------------------------------------------------


def _initializer(name, change):
    def spoil(model):
        for tensor in model.graph.initializer:
            if tensor.name == name:
                tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), name))

    return spoil


def _input(op, place, source):
    """Let a node read another value. source: its name, or a function of its inputs"""

    def spoil(model):
        for node in model.graph.node:
            if node.op_type == op and place < len(node.input):
                node.input[place] = source(node) if callable(source) else source

    return spoil


def _none(op, place):
    def spoil(model):
        for node in model.graph.node:
            if node.op_type == op:
                del node.input[place:]

    return spoil


BUGS = {
    "no zero point": (_none("MatMulInteger", 2), "zero point of the activations not subtracted"),
    "no zero point of the weight": (_initializer("weight_zero", np.zeros_like), "weight's zero point missing"),
    "next zero point": (_initializer("weight_zero", lambda z: np.roll(z, -1)), "zero point of the next row"),
    "first zero point": (_initializer("weight_zero", lambda z: np.full_like(z, z[0])), "first zero point used"),
    "given zero point": (_initializer("x_zero", np.zeros_like), "given zero point ignored"),
    "no zero point of the result": (_initializer("y_zero", np.zeros_like), "result's zero point missing"),
    "next scale": (_initializer("weight_scale", lambda s: np.roll(s, -1)), "scale of the next row"),
    "no bias": (_initializer("bias", np.zeros_like), "bias missing"),
    "float16 scale": (
        _initializer("weight_scale", lambda s: s.astype(np.float16).astype(np.float32)),
        None,  # on no page
    ),
}


class Spoiled:
    """The engine with changed graphs."""

    version = "1"

    def __init__(self, engine, spoil):
        self.name, self._engine, self._spoil = engine.name, engine, spoil
        self.refuses, self.numerics, self.deviations = engine.refuses, engine.numerics, engine.deviations

    def run(self, case, inputs):
        built = case_model(case, inputs, quantized=True)
        self._spoil(built.model)
        return self._engine._execute(CaseModel(built.model, built.feeds))


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_seen_and_named(name, engines, runner):
    spoil, words = BUGS[name]
    cases = [case for case in _ZERO if case.op == "linear_int8"]
    results = conform.run(runner, [Spoiled(engines["onnxruntime-qdq"], spoil)], cases)
    failed = [r for r in results if r.status == "fail"]
    assert failed, f"{name} gets through"
    causes = [cause for r in failed for cause in r.causes]
    assert words is None or any(words in cause for cause in causes), causes


def test_a_linear_layer_that_rounds_unasked_is_named(engines, runner, monkeypatch):
    """Quantised dynamically, declared as float32."""
    case = next(case for case in OPERATIONS["linear"].cases if case.name.startswith("linear/f32/tokens"))
    pretends = Reference(replace(ONNXRUNTIME_DYNAMIC, activations={"f32": UINT8_TENSOR}))
    monkeypatch.setattr(pretends, "numerics", lambda case: ONNXRUNTIME_CPU)
    (result,) = conform.run(runner, [pretends], [case])
    assert result.status == "fail"
    assert "activations rounded to uint8, one scale for the tensor, with a zero point" in result.causes


def test_its_rule_is_told_from_outside(engines):
    rule, _ = rule_of(Questioner(engines["onnxruntime-qdq"]), "i8")
    assert rule == UINT8_TENSOR == engines["onnxruntime-qdq"].numerics(_ZERO[0]).activations["i8"]
    assert rule_of(Questioner(engines["onnxruntime"]), "i8")[0] is None


def test_a_linear_layer_of_int8_is_what_it_declares(engines):
    """Codes with a scale a row, as a file has them."""
    rng = np.random.default_rng(2)
    codes = rng.integers(-64, 64, (20, 96)).astype(np.int8)
    weight = StoredTensor("i8", codes.shape, codes, Scaling(rng.uniform(0.01, 0.02, 20).astype(np.float32)))
    x = stored((rng.standard_normal((33, 96)) + 0.5).astype(np.float32))
    case = msgspec.structs.replace(CASES["linear/f32/tokens-x77x320-o33"], params={})
    theirs = engines["onnxruntime-qdq"].run(case, {"x": x, "weight": weight})["y"]
    ours, widened = (
        operations.run("linear", Arithmetic(numerics), {"x": x, "weight": weight}, {})["y"]
        for numerics in (ONNXRUNTIME_DYNAMIC, ONNXRUNTIME_CPU)
    )
    assert abs(theirs - ours).max() < 1e-6 * abs(ours).max()
    assert abs(theirs - widened).max() > 1e-3 * abs(ours).max()
