"""Graphs evaluated in float64: the rule of casts, functions, control flow, quantizations, taps."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from refsd.module import Taps
from refsd.numerics.profiles import FLOAT32
from refsd.onnx.evaluate import evaluate
from refsd.onnx.evaluate.check import check
from refsd.onnx.evaluate.file import Model

F, H, D, I, B = (getattr(TensorProto, name) for name in ("FLOAT", "FLOAT16", "DOUBLE", "INT64", "BOOL"))
rng = np.random.default_rng(0)


def model(tmp_path, nodes, inputs, outputs, tensors=None, opset=21, functions=()):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (tensors or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("f", 1)]
    made = Model(tmp_path / "m.onnx", helper.make_model(graph, opset_imports=opsets, functions=functions))
    check(made)
    return made


def test_a_cast_to_a_narrow_type_rounds_and_a_wide_one_does_not(tmp_path):
    x = np.array([1 / 3, 1e5, 1e-9])
    nodes = [
        helper.make_node("Cast", ["x"], ["half"], to=H),
        helper.make_node("Cast", ["half"], ["y"], to=D),
        helper.make_node("Cast", ["x"], ["single"], to=F),
        helper.make_node("Cast", ["x"], ["eighth"], to=TensorProto.FLOAT8E4M3FN),
    ]
    kinds = {"y": D, "half": H, "single": F, "eighth": TensorProto.FLOAT8E4M3FN}
    of = model(tmp_path, nodes, {"x": (D, [3])}, kinds)
    found = evaluate(of, {"x": x})
    np.testing.assert_array_equal(found.outputs["y"], [float(np.float16(1 / 3)), np.inf, 0])
    np.testing.assert_array_equal(found.outputs["single"], x)
    assert found.outputs["eighth"][1] == 448  # saturated
    assert found.types == {"y": "double", "half": "float16", "single": "float", "eighth": "float8e4m3fn"}
    exact = evaluate(of, {"x": x}, exact=True).outputs
    np.testing.assert_array_equal(exact["y"], x)
    assert exact["eighth"][1] == 448


@pytest.mark.parametrize(
    ("op", "attributes", "tensors", "shape"),
    [
        ("Conv", {}, {"w": (4, 3, 3, 3)}, (0, 4, 6, 6)),
        ("ConvTranspose", {}, {"w": (3, 4, 3, 3)}, (0, 4, 10, 10)),
        ("GroupNormalization", {"num_groups": 3}, {"w": (3,), "b": (3,)}, (0, 3, 8, 8)),
        ("AveragePool", {"kernel_shape": [2, 2]}, {}, (0, 3, 7, 7)),
        ("GlobalAveragePool", {}, {}, (0, 3, 1, 1)),
        ("ReduceMean", {}, {}, (1, 1, 1, 1)),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_batch_of_nothing(tmp_path, op, attributes, tensors, shape):
    nodes = [helper.make_node(op, ["x", *tensors], ["y"], **attributes)]
    weights = {name: np.ones(size, np.float32) for name, size in tensors.items()}
    of = model(tmp_path, nodes, {"x": (F, [0, 3, 8, 8])}, {"y": F}, weights)
    assert evaluate(of, {"x": np.zeros((0, 3, 8, 8))}).outputs["y"].shape == shape


def test_floats_are_computed_in_float64_and_in_float32_where_asked(tmp_path):
    a, b = rng.normal(size=(2, 64, 64)).astype(np.float32)
    of = model(tmp_path, [helper.make_node("MatMul", ["a", "b"], ["y"])], {"a": (F, [64, 64])}, {"y": F}, {"b": b})
    truth = evaluate(of, {"a": a}).outputs["y"]
    assert truth.dtype == np.float64
    np.testing.assert_allclose(truth, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-13)
    honest = evaluate(of, {"a": a}, numerics=FLOAT32).outputs["y"]
    assert honest.dtype == np.float32 and 1e-9 < np.abs(honest - truth).max() < 1e-4


CONV = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 2]}
OPERATORS = {
    "Conv in groups": ("Conv", {"group": 2, **CONV}, {"x": (2, 4, 7, 9), "w": (6, 2, 3, 2), "b": (6,)}),
    "ConvTranspose": (
        "ConvTranspose",
        {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 2], "dilations": [2, 1]},
        {"x": (1, 4, 3, 4), "w": (4, 3, 3, 2), "b": (3,)},
    ),
    "GroupNormalization": ("GroupNormalization", {"num_groups": 3}, {"x": (2, 6, 3, 3), "s": (6,), "b": (6,)}),
    "LayerNormalization": ("LayerNormalization", {"axis": -2}, {"x": (2, 3, 4), "s": (3, 4), "b": (3, 4)}),
    "InstanceNormalization": ("InstanceNormalization", {}, {"x": (2, 3, 8), "s": (3,), "b": (3,)}),
    "Gemm": ("Gemm", {"transB": 1, "alpha": 0.5, "beta": 2.0}, {"a": (3, 4), "b": (5, 4), "c": (5,)}),
    "Einsum": ("Einsum", {"equation": "bhid,bhjd->bhij"}, {"q": (1, 2, 3, 4), "k": (1, 2, 5, 4)}),
    "Softmax": ("Softmax", {"axis": 1}, {"x": (2, 5, 3)}),
    "AveragePool": ("AveragePool", {"kernel_shape": [2, 3], "strides": [2, 2]}, {"x": (1, 2, 5, 5)}),
    "Gelu": ("Gelu", {"approximate": "tanh"}, {"x": (3, 4)}),
    "cubic Resize": (
        "Resize", {"mode": "cubic", "coordinate_transformation_mode": "align_corners"}, {"x": (1, 2, 4, 5)}
    ),
}  # fmt: skip


# onnx 1.23's reference rounds to float32 on the way in these, whatever its inputs.
ROUNDED = ("GroupNormalization", "Gelu", "Resize")


@pytest.mark.parametrize("op, attributes, shapes", OPERATORS.values(), ids=OPERATORS)
def test_operators_against_onnxs_reference_in_float64(tmp_path, op, attributes, shapes):
    inputs = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    names, tensors = list(inputs), {}
    if op == "Resize":
        names, tensors = ["x", "", "", "sizes"], {"sizes": np.array([1, 2, 9, 7])}
    nodes = [helper.make_node(op, names, ["y"], **attributes)]
    of = model(tmp_path, nodes, {n: (D, x.shape) for n, x in inputs.items()}, {"y": D}, tensors)
    (other,) = ReferenceEvaluator(of.proto).run(None, inputs)
    error = np.abs(evaluate(of, inputs).outputs["y"] - other).max()
    assert error <= (3e-6 if op in ROUNDED else 1e-12)


def test_an_operator_that_onnx_defines_by_others(tmp_path):
    """Attention has no page here: its definition is evaluated, and holds no rounding."""
    q, k, v = rng.normal(size=(3, 2, 4, 5, 8))
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)
    of = model(tmp_path, [node], dict.fromkeys("qkv", (D, [2, 4, 5, 8])), {"y": D}, opset=23)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(8) + np.triu(np.full((5, 5), -np.inf), 1)
    power = np.exp(scores - scores.max(-1, keepdims=True))
    truth = power / power.sum(-1, keepdims=True) @ v
    np.testing.assert_allclose(evaluate(of, {"q": q, "k": k, "v": v}).outputs["y"], truth, rtol=1e-6)


def test_functions_with_attributes_and_taps_within(tmp_path):
    scaled = helper.make_node("LeakyRelu", ["x"], ["z"])
    reference = scaled.attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "alpha", "slope", 1
    function = helper.make_function(
        "f", "Twice", ["x"], ["y"], [scaled, helper.make_node("Add", ["z", "z"], ["y"])],
        [helper.make_opsetid("", 21)], ["slope"],
    )  # fmt: skip
    call = helper.make_node("Twice", ["x"], ["y"], name="call", domain="f", slope=0.5)
    of = model(tmp_path, [call], {"x": (F, [2])}, {"y": F}, functions=[function])
    taps = Taps(ops=True)
    assert evaluate(of, {"x": [-4.0, 1.0]}, taps).outputs["y"].tolist() == [-4, 2]
    assert {name: y.tolist() for name, y in taps.items()} == {"call/z": [-2, 1], "call/y": [-4, 2], "y": [-4, 2]}


def test_if_and_loop_see_the_names_around_them(tmp_path):
    def info(name, kind=F, shape=(2,)):
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "x"], ["t"]),
            helper.make_node("Identity", ["go"], ["again"]),
            helper.make_node("Identity", ["t"], ["each"]),
        ],
        "body", [info("i", I, []), info("go", B, []), info("s")], [info("again", B, []), info("t"), info("each")],
    )  # fmt: skip
    yes = helper.make_graph([helper.make_node("Neg", ["sum"], ["negated"])], "yes", [], [info("negated")])
    no = helper.make_graph([helper.make_node("Abs", ["sum"], ["same"])], "no", [], [info("same")])
    nodes = [
        helper.make_node("Loop", ["three", "", "x"], ["sum", "sums"], body=body),
        helper.make_node("If", ["flag"], ["y"], then_branch=yes, else_branch=no),
    ]
    tensors = {"three": np.array(3)}
    of = model(tmp_path, nodes, {"x": (F, [2]), "flag": (B, [])}, {"y": F, "sums": F}, tensors)
    found = evaluate(of, {"x": [1.0, 2.0], "flag": np.array(True)}).outputs
    assert found["y"].tolist() == [-4, -8] and found["sums"].tolist() == [[2, 4], [3, 6], [4, 8]]
    assert evaluate(of, {"x": [1.0, 2.0], "flag": np.array(False)}).outputs["y"].tolist() == [4, 8]


def test_blocks_of_four_bits(tmp_path):
    """y = (x - zero) scale, a scale for each two values; int4 and uint4 in a file hold two values in a byte."""
    codes = TensorProto(name="q", data_type=TensorProto.INT4, dims=[4], raw_data=bytes([0x8F, 0x72]))
    nodes = [
        helper.make_node("Constant", [], ["q"], value=codes),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y"], axis=0, block_size=2),
    ]
    of = model(tmp_path, nodes, {"s": (F, [2])}, {"y": F})
    assert evaluate(of, {"s": [1.0, 10.0]}).outputs["y"].tolist() == [-1, -8, 20, 70]


def test_values_are_dropped_after_their_last_use(tmp_path):
    nodes = [helper.make_node("Add", [f"a{i}" if i else "x", "one"], [f"a{i + 1}"]) for i in range(50)]
    of = model(tmp_path, nodes, {"x": (F, [1000])}, {"a50": F}, {"one": np.float32(1)})
    found = evaluate(of, {"x": np.zeros(1000)})
    assert (found.outputs["a50"] == 50).all() and found.peak <= 3 * 8000
