"""A graph knows its shapes, keeps its names apart and passes ONNX's checker."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from refsd.onnx.builder import IR_VERSION, OPSET, Builder


def small() -> tuple[Builder, np.ndarray]:
    b = Builder("small")
    x = b.input("x", np.float32, (2, 3))
    y = b.node("Mul", b.node("Add", x, 1.5), 1.5)
    b.output(b.reshape(y, (3, -1)), "y")
    return b, np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_model_is_whole_and_computes():
    b, x = small()
    model = b.model({"refsd.case": "small"})
    onnx.checker.check_model(model, full_check=True)
    assert (model.ir_version, model.opset_import[0].version) == (IR_VERSION, OPSET)
    assert {entry.key: entry.value for entry in model.metadata_props} == {"refsd.case": "small"}
    np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, {"x": x})[0], ((x + 1.5) * 1.5).reshape(3, 2))


def test_equal_constants_are_one():
    graph = small()[0].model().graph
    numbers = [tensor for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
    assert len(numbers) == 1
    assert len({node.output[0] for node in graph.node}) == len(graph.node)


def test_constants_of_other_bits_are_not_one():
    b = Builder("zeros")
    assert b.constant(np.float32(0.0)).name != b.constant(np.float32(-0.0)).name
    assert b.constant(np.float32(0.0)).name != b.constant(np.int32(0)).name


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "shape"),
    [
        ("Reshape", ([3, 2],), {}, (3, 2)),
        ("Transpose", (), {"perm": [1, 0]}, (3, 2)),
        ("Slice", ([1], [3], [1]), {}, (2, 2)),
        ("ReduceMean", ([-1],), {}, (2, 1)),
    ],
)
def test_shapes_are_inferred_through_constants(op, inputs, attributes, shape):
    b = Builder("shapes")
    assert b.node(op, b.input("x", np.float32, (2, 3)), *inputs, **attributes).shape == shape


def test_a_schema_without_shapes_keeps_its_inputs():
    """GroupNormalization's infers none."""
    b = Builder("norm")
    x, one = b.input("x", np.float32, (1, 4, 2, 2)), b.constant(np.ones(4, np.float32))
    assert b.node("GroupNormalization", x, one, one, num_groups=2).shape == (1, 4, 2, 2)


def test_an_absent_last_input_is_left_out():
    """onnxruntime 1.32 crashes on LayerNormalization(x, scale, "")."""
    b = Builder("norm")
    x, one = b.input("x", np.float32, (2, 4)), b.constant(np.ones(4, np.float32))
    b.output(b.node("LayerNormalization", x, one, None), "y")
    assert [*b.model().graph.node[0].input] == ["x", one.name]
