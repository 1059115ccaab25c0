"""refsd run-onnx: inputs from files, folders and recipes; files written; one line for what cannot be."""

import json
import time
import tracemalloc

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from refsd.cli import app
from refsd.files.formats import open_weights
from refsd.numerics.errors import BadInput


def run(*arguments):
    return CliRunner().invoke(app, ["run-onnx", *map(str, arguments)])


def saved(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "z"], ["sum"]), helper.make_node("Relu", ["sum"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2]),
            helper.make_tensor_value_info("z", TensorProto.FLOAT, [2]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())
    return path


def test_inputs_from_files_and_recipes_outputs_and_taps(tmp_path):
    path, x = saved(tmp_path), np.array([[-1.0, 2.0]])
    np.save(tmp_path / "x.npy", x)
    out, taps = tmp_path / "y.safetensors", tmp_path / "taps.npz"
    done = run(path, "-i", f"x={tmp_path / 'x.npy'}", "-i", "recipe", "-o", out, "--taps", taps, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["nodes"] == 2 and told["taps"] == 2 and told["outputs"][0]["shape"] == [1, 2]
    y = open_weights(out)["y"].values()
    assert y.dtype == np.float64
    with np.load(taps) as recorded:
        np.testing.assert_array_equal(y, np.maximum(recorded["sum"], 0))
    assert "N: say how long" not in done.output


def test_a_test_data_set_of_onnx(tmp_path):
    path, folder = saved(tmp_path), tmp_path / "test_data_set_0"
    folder.mkdir()
    for i, array in enumerate((np.ones((3, 2), np.float32), np.array([1, -5], np.float32))):
        (folder / f"input_{i}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    done = run(path, "-i", folder)
    assert done.exit_code == 0 and "y: float [3, 2]  min 0  max 2" in done.output


def test_what_cannot_be_is_told_in_one_line(tmp_path):
    path = saved(tmp_path)
    for arguments, says in (
        ((path,), "the input 'x' is missing: float [N, 2]"),
        ((path, "-i", "recipe"), "with --dim NAME=N"),
        ((path, "-i", "recipe", "--dim", "N=x"), "--dim N=x: expected NAME=N"),
        ((path, "-i", "q=recipe"), "no input 'q'"),
        ((path, "--numerics", "ggml-cpu"), "expected float64 or float32"),
        ((tmp_path / "none.onnx",), "none.onnx"),
        ((), "name an .onnx file"),
    ):
        done = run(*arguments)
        assert done.exit_code != 0 and says in str(done.exception), (arguments, done.output, done.exception)
    assert run(path, "-i", "recipe", "--dim", "N=3").exit_code == 0


def drawing(tmp_path, *shape):
    graph = helper.make_graph(
        [helper.make_node("Shape", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
    )
    path = tmp_path / "drawn.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())
    return path


def test_inputs_are_drawn_within_the_memory(tmp_path):
    """100 bytes that declare a long input take no more than --memory says."""
    for shape, says in (
        ([2**62], "give more with --memory"),
        ([2**24], "give more with --memory"),
        ([0, 2**62], "more than 2^48 elements"),
        ([1] * 40, "40 axes, at most 32 expected"),
    ):
        tracemalloc.start()
        try:
            done = run(drawing(tmp_path, *shape), "-i", "recipe", "--memory", "0.1")
            assert tracemalloc.get_traced_memory()[1] < 30e6
        finally:
            tracemalloc.stop()
        assert isinstance(done.exception, BadInput) and says in str(done.exception), (shape, done.exception)
        assert "drawn.onnx: " in str(done.exception)
    taken = json.loads(run(drawing(tmp_path, 2**20), "-i", "recipe", "--memory", "0.1", "--json").output)
    assert 8 * 2**20 <= taken["peak_bytes"] < 17 * 2**20


def test_an_evaluation_ends_in_the_seconds_that_it_has(tmp_path):
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("again", TensorProto.BOOL, [])],
    )
    nodes = [helper.make_node("Loop", ["n", ""], [], body=body), helper.make_node("Identity", ["n"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [], [helper.make_tensor_value_info("y", TensorProto.INT64, [])],
        [helper.make_tensor("n", TensorProto.INT64, [], [2**40])],
    )  # fmt: skip
    path = tmp_path / "loop.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString())
    start = time.monotonic()
    done = run(path, "--seconds", "0.2")
    assert time.monotonic() - start < 2 and "not done in 0.2 s: give more with --seconds" in str(done.exception)
    assert "--seconds 0.0: expected" in str(run(path, "--seconds", "0").exception)


def test_the_operators_are_listed():
    listed = run("--operators").output.splitlines()
    assert {"Conv", "Attention (by ONNX's definition)", "com.microsoft::QuickGelu"} <= set(listed)
    assert len(listed) > 150 and not any(line.startswith(("Bernoulli", "SequenceMap")) for line in listed)
