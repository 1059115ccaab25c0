"""Graphs in ONNX that somebody wrote: adopted without torch; what cannot be is refused in one message."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.adoption.folder import read
from refsd.adoption.tidying import NUMBERS, numbers_of
from refsd.cli import app
from refsd.components import COMPONENTS
from refsd.golden.store import Store
from refsd.judges.model import ModelJudge
from refsd.numerics.errors import BadInput


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def saved(path, nodes, weights, inputs=(("x", (2, "tokens", 6)),), output="y"):
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    taken = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs]
    given = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", taken, given, tensors)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.acme", 1)]
    )
    path.write_bytes(model.SerializeToString())
    return path


def block(path):
    """An MLP behind an RMSNorm that is spelled out, as other exporters write it."""
    weights = {
        "mlp.up.weight": draw(0, 6, 8), "mlp.up.bias": draw(1, 8), "norm.weight": draw(2, 6),
        "two": np.float32(2), "eps": np.float32(1e-6), "last": np.array([-1]),
    }  # fmt: skip
    steps = [
        ("Pow", ["x", "two"], "square", "/norm/Pow"),
        ("ReduceMean", ["square", "last"], "mean", "/norm/ReduceMean"),
        ("Add", ["mean", "eps"], "sum", "/norm/Add"), ("Sqrt", ["sum"], "root", "/norm/Sqrt"),
        ("Reciprocal", ["root"], "inverse", "/norm/Reciprocal"), ("Mul", ["x", "inverse"], "unit", "/norm/Mul"),
        ("Mul", ["unit", "norm.weight"], "normed", "/norm/Mul_1"),
        ("MatMul", ["normed", "mlp.up.weight"], "product", "/mlp/up/MatMul"),
        ("Add", ["product", "mlp.up.bias"], "up", "/mlp/up/Add"), ("Sigmoid", ["up"], "gate", "/mlp/act/Sigmoid"),
        ("Mul", ["up", "gate"], "y", "/mlp/act/Mul"),
    ]  # fmt: skip
    return saved(path, [helper.make_node(op, given, [made], name=name) for op, given, made, name in steps], weights)


def adopted(path, *options):
    done = run("adopt", path, "-o", path.with_suffix(""), "-i", "recipe", *options)
    assert done.exit_code == 0, done.exception
    return read(path.with_suffix(""))


def test_operations_are_recognised_and_named_by_paths(tmp_path):
    case = adopted(block(tmp_path / "block.onnx"), "--dim", "tokens=5")
    labels = [step.label for step in COMPONENTS[case.name].run.graph.steps]
    assert labels == ["rms_norm", "linear", "silu"]
    assert [*ModelJudge().reference_taps(case, case.realize())] == ["norm", "mlp.up", "mlp.act", "mlp"]
    assert case.inputs["x"].shape == (2, 5, 6)


def test_its_answer_is_that_of_its_nodes(tmp_path):
    case = adopted(block(tmp_path / "block.onnx"), "--dim", "tokens=5")
    values = {name: tensor.values().astype(np.float64) for name, tensor in case.realize().items()}
    x = values["x"]
    up = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * values["norm.weight"] @ values["mlp.up.weight"]
    up += values["mlp.up.bias"]
    truth = Store(tmp_path / "block").get(case.name).outputs["y"]
    np.testing.assert_allclose(truth, up / (1 + np.exp(-up)), rtol=1e-13)


def test_a_mask_s_lowest_float64_is_no_float32(tmp_path):
    """torch.finfo(torch.float64).min is among a text encoder's numbers: read without a warning of overflow."""
    model = onnx.load(saved(tmp_path / "x.onnx", [helper.make_node("Neg", ["x"], ["y"])], {}))
    helper.set_model_props(model, {NUMBERS: "[0.1, -1.7976931348623157e+308]"})
    assert numbers_of(model) == {float(np.float32(0.1)): 0.1}


def test_the_folder_holds_what_the_case_needs_and_no_more(tmp_path):
    adopted(block(tmp_path / "block.onnx"), "--dim", "tokens=5")
    assert not (tmp_path / "block" / "tmp").exists()


def test_wrong_weights_are_named_by_the_graph_s_own_names(tmp_path):
    case = adopted(block(tmp_path / "block.onnx"), "--dim", "tokens=5")
    right = ModelJudge().reference_taps(case, case.realize())
    bias = case.realize()["mlp.up.bias"].values()
    wrong = {
        "norm": np.asarray(right["norm"], np.float32),
        "mlp.up": np.asarray(right["mlp.up"] - bias, np.float32),
    }
    save_file(wrong, tmp_path / "d.safetensors")
    done = run("compare", tmp_path / "d.safetensors", tmp_path / "block")
    assert done.exit_code == 1 and "at mlp.up" in done.output and "bias" in done.output, done.output


# Its own peak: ru_maxrss begins with that of the process that starts it.
PEAK = """
import sys
from pathlib import Path

from refsd.adoption import folder
from refsd.commands.adopt import adopt
from refsd.engines.exec.engine import _write_tensors
from refsd.engines.reference import Reference
from refsd.golden import conform
from refsd.goldens.judging import runner

folder.LARGEST = 1 << 20
path = Path(sys.argv[1])
adopt(str(path), path.with_suffix(""), None, ["recipe"], [], False)
case = folder.read(path.with_suffix(""))
truth = Reference().run(case, case.realize())
(result,) = conform.run(runner(lambda case: truth), [Reference()], [case])
assert result.conforms
_write_tensors(case.realize(), path.with_suffix(".asked"))
print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="tells a process's peak")
def test_weights_are_judged_one_at_a_time(tmp_path):
    """A graph of twelve layers more, 48 MiB of float32, takes no more memory to adopt, to judge and to hand on."""
    peaks = []
    for layers in (2, 14):
        nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(layers)]
        weights = {f"w{i}": draw(i, 1024, 1024) / 32 for i in range(layers)}
        path = saved(tmp_path / f"g{layers}.onnx", nodes, weights, [("x0", (3, 1024))], f"x{layers}")
        onnx.save(onnx.load(path), path, save_as_external_data=True, location=f"{layers}.bin")
        command = [sys.executable, "-P", "-c", PEAK, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split()[-1]) / 1024)
    assert peaks[1] - peaks[0] < 16, peaks


def test_operators_that_refsd_does_not_run_are_listed_at_once(tmp_path):
    branch = helper.make_graph([], "b", [], [])
    nodes = [
        helper.make_node("Warp", ["x"], ["a"], domain="com.acme", name="warp"),
        helper.make_node("If", ["c"], ["b"], then_branch=branch, else_branch=branch, name="choose"),
        helper.make_node("RandomNormalLike", ["a"], ["d"], name="noise"),
        helper.make_node("Warp", ["d"], ["y"], domain="com.acme", name="again"),
    ]
    path = saved(tmp_path / "m.onnx", nodes, {})
    done = run("adopt", path, "-o", tmp_path / "m", "-i", "recipe", "--dim", "tokens=5")
    error = str(done.exception)
    assert isinstance(done.exception, BadInput) and not (tmp_path / "m").exists()
    for part in (
        "com.acme::Warp, 2 nodes, first node 'warp'",
        "If (its path depends on values",
        "RandomNormalLike",
    ):
        assert part in error, error


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("-i", "recipe"), "say how long its axes are"),
        ((), "--inputs lacks x float [2, tokens, 6]"),
        (("-i", "recipe", "--dim", "tokens=5", "--config", "c.json"), "--config"),
    ],
)
def test_inputs_that_are_missing_are_asked_for(tmp_path, options, says):
    done = run("adopt", block(tmp_path / "block.onnx"), "-o", tmp_path / "out", *options)
    assert isinstance(done.exception, BadInput) and says in str(done.exception), done.exception
    assert not (tmp_path / "out").exists()


def test_a_folder_of_somebody_else_is_not_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work.txt").write_text("work")
    done = run(
        "adopt", block(tmp_path / "block.onnx"), "-o", tmp_path / "mine", "-i", "recipe", "--dim", "tokens=5"
    )
    assert "not written by refsd" in str(done.exception) and (tmp_path / "mine" / "work.txt").exists()
