"""Hostile files: one line, nothing large made, no file read outside the model's folder."""

import sys
import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from refsd.numerics.errors import BadInput
from refsd.onnx.evaluate import check, evaluate, open_graph

F, I = TensorProto.FLOAT, TensorProto.INT64


def info(name, shape=(2,), kind=F):
    return helper.make_tensor_value_info(name, kind, shape)


def save(path, nodes, inputs=("x",), outputs=("y",), tensors=(), functions=(), opsets=(("", 21),), shape=None):
    graph = helper.make_graph(
        nodes, "g", [info(name) for name in inputs], [info(name, shape) for name in outputs], tensors
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*o) for o in opsets], functions=functions, ir_version=10
    )
    path.write_bytes(model.SerializeToString())
    return path


def ints(name, *values):
    return helper.make_tensor(name, I, [len(values)], values)


def external(name, shape, **entries):
    tensor = TensorProto(name=name, data_type=F, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def refused(path, inputs=None, limit=10**8):
    """The message of a file that is refused: one line, while little memory is taken."""
    tracemalloc.start()
    try:
        with pytest.raises(BadInput) as error:
            evaluate(open_graph(path), {"x": np.ones(2)} if inputs is None else inputs, limit=limit)
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()
    message = str(error.value)
    assert "\n" not in message and str(path.parent) in message
    return message


relu = helper.make_node("Relu", ["x"], ["y"])


def test_files_that_are_none(tmp_path):
    path = save(tmp_path / "m.onnx", [relu], tensors=[helper.make_tensor("w", F, [64], [1.0] * 64)])
    whole = path.read_bytes()
    assert evaluate(open_graph(path), {"x": [-1.0, 2.0]}).outputs["y"].tolist() == [0, 2]
    for content in (b"", b"hello, world", whole[: len(whole) // 2], whole[:-3], b"\x00" * 100, b"\xff" * 1000):
        path.write_bytes(content)
        assert "ONNX model" in refused(path)
    assert "a folder" in refused(tmp_path)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ([helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])], "a cycle"),
        ([helper.make_node("Relu", ["y"], ["y"])], "a cycle"),
        ([helper.make_node("Relu", ["z"], ["y"])], "nothing gives it"),
        ([relu, helper.make_node("Neg", ["x"], ["y"])], "defined already"),
        ([helper.make_node("Relu", ["x"], ["x"])], "defined already"),
        ([helper.make_node("Relu", ["x"], ["z"])], "nothing gives the output 'y'"),
        ([helper.make_node("Relux", ["x"], ["y"], name="act")], "node 'act' (Relux): refsd does not run this"),
        ([helper.make_node("Relu", ["x"], ["y"], domain="ai.evil")], "no version of the domain 'ai.evil'"),
        ([helper.make_node("Bernoulli", ["x"], ["y"])], "does not run this operator"),
        ([helper.make_node("LSTM", ["x", "x", "x"], ["y"])], "does not run this operator"),
        ([helper.make_node("Softmax", ["x"], ["y"], axis=7)], "axis 7 of a tensor with 1 axes"),
        ([helper.make_node("LeakyRelu", ["x"], ["y"], alphb=0.5)], "an attribute 'alphb' (did you mean"),
        ([helper.make_node("Relu", ["x"], ["y"], to=1)], "Relu has none"),
        ([helper.make_node("Transpose", ["x"], ["y"], perm=[3, 1])], "(Transpose)"),
        ([helper.make_node("Conv", ["x", "x"], ["y"])], "(Conv)"),
        ([helper.make_node("Concat", ["x", "x"], ["y"])], "(Concat)"),
        ([helper.make_node("Cast", ["x"], ["y"], to=8)], "holds no numbers"),
    ],
)  # fmt: skip
def test_graphs_that_cannot_run(tmp_path, nodes, says):
    assert says in refused(save(tmp_path / "m.onnx", nodes))


def test_text_that_is_no_utf8(tmp_path):
    """Protobuf parses such a name, and gives bytes where every reader expects a str."""
    nodes = [helper.make_node("Relu", ["name_q"], ["y"], doc_string="text_q")]
    path = save(tmp_path / "m.onnx", nodes, inputs=("name_q",), tensors=[external("w", [2], location="file_q")])
    whole = path.read_bytes()
    for text in (b"name_q", b"text_q", b"file_q"):
        path.write_bytes(whole.replace(text, text[:-1] + b"\x80"))
        assert "no UTF-8: the file is damaged" in refused(path)


def test_a_definition_by_operators_that_refsd_does_not_run(tmp_path, monkeypatch):
    """What ONNX's definition consists of is known only when the inputs are."""
    monkeypatch.setattr(sys.modules[check.__module__], "_BODIES_NOT_RUN", ())
    message = refused(save(tmp_path / "m.onnx", [helper.make_node("Bernoulli", ["x"], ["y"])]))
    assert "(Bernoulli): node 'X_random' (RandomUniformLike): refsd does not run this operator" in message


def test_names_that_are_there_twice(tmp_path):
    tensors = [helper.make_tensor("w", F, [1], [1.0]), helper.make_tensor("w", F, [1], [2.0])]
    assert "'w' is defined twice" in refused(save(tmp_path / "m.onnx", [relu], tensors=tensors))
    assert "'x' is defined twice" in refused(save(tmp_path / "m.onnx", [relu], inputs=("x", "x")))


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({}, "the input 'x' is missing"),
        ({"x": np.ones(2), "z": np.ones(2)}, "no input is called 'z'"),
        ({"x": np.ones(3)}, "float [2] expected"),
        ({"x": np.ones((2, 1))}, "float [2] expected"),
    ],
)
def test_inputs_that_do_not_fit(tmp_path, inputs, says):
    assert says in refused(save(tmp_path / "m.onnx", [relu]), inputs)


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("/etc/passwd", "outside the model's folder"),
        ("../outside.bin", "outside the model's folder"),
        ("sub/../../outside.bin", "outside the model's folder"),
        ("C:\\outside.bin", "outside the model's folder"),
        ("link.bin", "is a link"),
        ("linked/outside.bin", "is a link"),
        ("missing.bin", "cannot read the file"),
        (".", "a folder"),
        ("", "no file is named"),
    ],
)
def test_external_data_outside_of_the_folder(tmp_path, location, says):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(b"\0" * 400)
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    (folder / "linked").symlink_to(tmp_path)
    path = save(folder / "m.onnx", [relu], tensors=[external("w", [100], location=location)])
    assert says in refused(path)


@pytest.mark.parametrize(
    ("shape", "entries", "says"),
    [
        ([100], {"offset": 8}, "ends at byte 408, the file at 400"),
        ([100], {"length": 10**12}, "takes 400 bytes"),
        ([100], {"offset": -4}, "offset '-4' is no number"),
        ([100], {"offset": "9" * 40}, "is no number"),
        ([2**31], {}, "the file at 400"),
        ([2**32, 2**32], {}, "more than 2^48 elements"),
        ([0, 2**62], {}, "more than 2^48 elements"),
        ([1] * 40, {}, "40 axes"),
        ([-1], {}, "an axis is negative"),
    ],
)
def test_external_data_beyond_the_file(tmp_path, shape, entries, says):
    (tmp_path / "w.bin").write_bytes(b"\0" * 400)
    path = save(tmp_path / "m.onnx", [relu], tensors=[external("w", shape, location="w.bin", **entries)])
    assert says in refused(path)


def test_external_data_are_read(tmp_path):
    (tmp_path / "w.bin").write_bytes(np.arange(5, dtype="<f4").tobytes())
    node = helper.make_node("Add", ["x", "w"], ["y"])
    path = save(tmp_path / "m.onnx", [node], tensors=[external("w", [2], location="w.bin", offset=12)])
    assert evaluate(open_graph(path), {"x": [0.0, 0.5]}).outputs["y"].tolist() == [3, 4.5]


@pytest.mark.parametrize("shape", [[2**31], [-1], [2**33, 2**33], [0, 2**62], [3]])
def test_tensors_whose_shape_lies(tmp_path, shape):
    for content in ({"raw_data": b"\0" * 8}, {"float_data": [1.0, 2.0]}):
        tensor = TensorProto(name="w", data_type=F, dims=shape, **content)
        node = helper.make_node("Add", ["x", "w"], ["y"])
        message = refused(save(tmp_path / "m.onnx", [node], tensors=[tensor]))
        assert "'w'" in message or "give more with --memory" in message


BIG = 2**40
GROWS = {
    "Expand": ([helper.make_node("Expand", ["x", "n"], ["y"])], ints("n", BIG, 2)),
    "Tile": ([helper.make_node("Tile", ["x", "n"], ["y"])], ints("n", BIG)),
    "ConstantOfShape": ([helper.make_node("ConstantOfShape", ["n"], ["y"])], ints("n", 2**31, 2**31)),
    "a product beyond 64 bits": ([helper.make_node("ConstantOfShape", ["n"], ["y"])], ints("n", 2**32, 2**32)),
    "a negative axis": ([helper.make_node("ConstantOfShape", ["n"], ["y"])], ints("n", -4)),
    "Pad": ([helper.make_node("Pad", ["x", "n"], ["y"])], ints("n", BIG, 0)),
    "Resize": ([helper.make_node("Resize", ["x", "", "", "n"], ["y"])], ints("n", BIG)),
    "OneHot": ([helper.make_node("OneHot", ["n", "n", "x"], ["y"])], ints("n", BIG)),
    "broadcast": (
        [
            helper.make_node("Expand", ["x", "n"], ["a"]),
            helper.make_node("Unsqueeze", ["a", "one"], ["b"]),
            helper.make_node("Flatten", ["b"], ["c"], axis=0),
            helper.make_node("Transpose", ["c"], ["d"]),
            helper.make_node("Mul", ["c", "d"], ["y"]),
        ],
        ints("n", 10**5, 2),
    ),
    "Gather": (
        [helper.make_node("Expand", ["zero", "n"], ["i"]), helper.make_node("Gather", ["i", "i"], ["a"]),
         helper.make_node("Unsqueeze", ["i", "one"], ["j"]), helper.make_node("Add", ["i", "j"], ["y"])],
        ints("n", 10**6),
    ),
    "Concat": (
        [helper.make_node("Concat", [f"a{i}" if i else "x"] * 2, [f"a{i + 1}" if i < 39 else "y"], axis=0)
         for i in range(40)],
        ints("n", 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("nodes, tensor", GROWS.values(), ids=GROWS)
def test_results_beyond_the_memory_are_not_made(tmp_path, nodes, tensor):
    path = save(tmp_path / "m.onnx", nodes, tensors=[tensor, ints("zero", 0), ints("one", 1)])
    message = refused(path, limit=10**7)
    assert "the budget is 10 MB: give more with --memory" in message or "negative" in message


def test_a_range_beyond_the_memory(tmp_path):
    tensors = [helper.make_tensor(name, I, [], [n]) for name, n in (("a", 0), ("b", 2**62), ("c", 1), ("d", 0))]
    for step in "cd":
        path = save(tmp_path / "m.onnx", [helper.make_node("Range", ["a", "b", step], ["y"])], tensors=tensors)
        assert "--memory" in refused(path) or "by 0" in refused(path)


def test_loops_and_functions_without_an_end(tmp_path, monkeypatch):
    monkeypatch.setattr("refsd.onnx.evaluate.budget.MOST_NODES", 1000)
    monkeypatch.setattr("refsd.onnx.evaluate.operators.control.MOST_NODES", 1000)
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"]), helper.make_node("Identity", ["s"], ["t"])],
        "body",
        [info("i", [], I), info("go", [], TensorProto.BOOL), info("s")],
        [info("again", [], TensorProto.BOOL), info("t")],
    )
    loop = helper.make_node("Loop", ["", "", "x"], ["y"], body=body)
    assert "more than 1000 nodes" in refused(save(tmp_path / "m.onnx", [loop]))

    opset = [helper.make_opsetid("", 21), helper.make_opsetid("f", 1)]
    call = helper.make_node("A", ["x"], ["y"], domain="f")
    endless = helper.make_function("f", "A", ["x"], ["y"], [call], opset)
    path = save(tmp_path / "m.onnx", [call], functions=[endless], opsets=(("", 21), ("f", 1)))
    assert "deep" in refused(path)
    doubling = [
        helper.make_function(
            "f", f"F{i}", ["x"], ["y"],
            [helper.make_node(f"F{i - 1}", [a], [b], domain="f") for a, b in ("xz", "zy")] if i else [relu],
            opset,
        )
        for i in range(30)
    ]  # fmt: skip
    call = helper.make_node("F29", ["x"], ["y"], domain="f")
    path = save(tmp_path / "m.onnx", [call], functions=doubling, opsets=(("", 21), ("f", 1)))
    assert "more than 1000 nodes" in refused(path)


def test_graphs_nested_deep(tmp_path):
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y0"])], "g", [], [info("y0")])
    for depth in range(1, 30):
        node = helper.make_node("If", ["c"], [f"y{depth}"], then_branch=graph, else_branch=graph)
        content = graph.SerializeToString()
        if len(content) > 10**6:
            break
        inner = onnx.GraphProto.FromString(content)
        node = helper.make_node("If", ["c"], [f"y{depth}"], then_branch=inner)
        graph = helper.make_graph([node], "g", [], [info(f"y{depth}")])
    nodes = [*graph.node, helper.make_node("Identity", [graph.output[0].name], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, tensors=[helper.make_tensor("c", TensorProto.BOOL, [], [1])])
    try:
        assert evaluate(open_graph(path), {"x": [-1.0, 2.0]}).outputs["y"].tolist() == [0, 2]
    except BadInput as error:
        assert "nested too deep" in str(error)
