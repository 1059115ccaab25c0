"""Models traced as graphs: evaluated in float64 they are the reference, tap by tap."""

import json

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from refsd.cases import CASES
from refsd.cli import app
from refsd.judges.model import ModelJudge
from refsd.module import Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.onnx.evaluate import evaluate, open_graph
from refsd.onnx.evaluate.check import check
from refsd.onnx.evaluate.file import Model
from refsd.onnx.trace.array import Graph, Traced
from refsd.onnx.trace.model_graph import model_graph, refuses
from refsd.weights.model_files import model_files


class EpsInFloat32(Arithmetic):
    """The reference with the eps that ONNX holds as an attribute: others are constants of the graph."""

    def parameter(self, op, name, value):
        value = super().parameter(op, name, value)
        return float(np.float32(value)) if name == "eps" and op in ("group_norm", "layer_norm") else value


def errors(case, tmp_path):
    """Relative L2 error of each tap and output of a case's graph in float64."""
    inputs, taps = case.realize(), Taps(ops=True)
    made = model_graph(case, inputs, model_files, np.float64, taps=True)
    model = Model(tmp_path / "m.onnx", made.model)
    check(model)
    found = evaluate(model, made.feeds).outputs
    truth = ModelJudge(model_files).tapped(case, inputs, EpsInFloat32(FLOAT64), taps)
    assert list(found) == [*truth, *taps]
    right = {name: y for name, y in {**taps, **truth}.items() if y.any()}
    return {name: np.linalg.norm(found[name] - y) / np.linalg.norm(y) for name, y in right.items()}


@pytest.mark.jitted
@pytest.mark.parametrize(
    "name",
    [
        "sd15/clip/short",
        "taef1/tae-decoder/wide",
        "flux2-klein/flux2/quiet",
        "gemma2-2b/gemma2/padded",
        "qwen2.5-vl-7b/qwen2_5_vl/image",
        "qwen3-vl-4b/qwen3_vl/image",
        "qwen3-vl-4b/qwen3_vl/pictures",
        "qwen3-vl-8b-vision/qwen3_vision/wide",
        "controlnet-union/controlnet/kind",
        "lone/zimage-control/zimage/controlled",
        "lone/qwen-image-control/qwen-image/controlled",
        "krea2/krea2/masked",
        "ernie-image/ernie-image/masked",
        "lone/ideogram4/ideogram4/masked",
        "minimax-h3/minimax-h3/keyframes",
        "lone/minimax-h3-pruned/minimax-h3/curve",
        "ltx2/ltx2/frames",
        "ltx23/ltx2/video",
        "anima/anima/whole",
        "anima-conditioner/anima-conditioner/masked",
        "flux3-distilled/flux3/jump",
        "qwen-image21/qwen-image21/masked",
        "qwen-image21/qwen-image21/edit",
        "minimax-h3-vae/minimax-h3-vae-encoder/picture",
        "minimax-h3-vae/minimax-h3-vae-decoder/frames",
        "ltx2-vae/ltx2-vae-encoder/frames",
        "ltx-video-vae/ltx2-vae-decoder/frames",
        "wan22-vae/wan22-vae-encoder/frames",
        "wan22-vae/wan22-vae-decoder/frames",
    ],
)
def test_every_tap_of_a_model_is_the_references(tmp_path, name):
    worst = errors(CASES[name], tmp_path)
    assert len(worst) > 20 and max(worst.values()) < 1e-12, max(worst, key=lambda tap: worst[tap])


# One tiny case of each component with each set of arguments.
KINDS = {
    (case.op, *case.inputs): case.name
    for case in CASES.values()
    if refuses(case) is None and case.op.startswith("model/") and not case.name.startswith("full/")
}


@pytest.mark.jitted
@pytest.mark.parametrize("name", KINDS.values())
def test_every_component_has_a_graph(name):
    case = CASES[name]
    assert model_graph(case, case.realize(), model_files, taps=True).taps


def test_what_is_no_model_is_refused():
    assert "no component" in refuses(CASES["silu/f32/bend-x33x77"])
    assert refuses(CASES["sd15/clip/short"]) is None


def run(tmp_path, record, *inputs):
    """What NumPy makes of arrays, and what the graph that records the same makes."""
    graph = Graph("g", np.dtype(np.float64))
    arguments = [Traced(graph, graph.input(f"x{i}", x.dtype, x.shape)) for i, x in enumerate(inputs)]
    graph.output(record(*arguments).value, "y")
    model = Model(tmp_path / "m.onnx", graph.model())
    onnx.checker.check_model(model.proto, full_check=True)
    found = evaluate(model, {f"x{i}": x for i, x in enumerate(inputs)})
    return record(*inputs), found.outputs["y"]


x, ids = np.random.default_rng(0).normal(size=(2, 6, 4, 3)), np.array([[1, 7, 7], [7, 0, 1]])
RECORDS = {
    "slices": lambda x: x[:, 1:5:2, ::2],
    "a negative index and new axes": lambda x: x[..., -1][:, None],
    "an ellipsis": lambda x: x[..., 1:],
    "reshape and transpose": lambda x: x.reshape(2, 3, -1, 4).transpose(0, 2, 1, 3).swapaxes(1, 3),
    "concatenate": lambda x: np.concatenate([x, np.ones((2, 1, 4, 3)), x], axis=1),
    "split": lambda x: np.split(x, [2, 5], axis=1)[1] + np.split(x, 2, axis=-2)[0][:, 3:, 1:],
    "arithmetic": lambda x: 1000 * x - x / 3 + np.float64(2) * x + (1 - x),
    "broadcast and repeat": lambda x: np.repeat(x[:, :1], 3, axis=1) + np.broadcast_to(x[0, 1:4], (2, 3, 4, 3)),
    "append": lambda x: np.append(x, 0 * x),
    "where": lambda x: np.where(np.arange(3) < 2, x, 7.0),
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_what_numpy_does_is_recorded(tmp_path, record):
    np.testing.assert_allclose(*run(tmp_path, record, x), rtol=1e-13)


def test_rows_at_the_first_of_a_token(tmp_path):
    def pooled(x, ids):
        return x[np.arange(2), np.argmax(ids == 7, axis=1)]

    np.testing.assert_array_equal(*run(tmp_path, pooled, x, ids))


def test_what_a_graph_cannot_know_is_told(tmp_path):
    graph = Graph("g", np.dtype(np.float32))
    traced = Traced(graph, graph.input("x", np.float32, (2,)))
    with pytest.raises(TypeError, match="x depends on the inputs"):
        np.asarray(traced)
    with pytest.raises(TypeError, match="no node for NumPy's median"):
        np.median(traced)
    with pytest.raises(TypeError, match="no node for NumPy's cosh"):
        np.cosh(traced)


@pytest.mark.jitted
def test_the_folder_that_is_exported(tmp_path):
    out = tmp_path / "out"
    arguments = ["export", "sd15/clip/short", "silu/f32/bend-x33x77", "--format", "onnx"]
    done = CliRunner().invoke(app, [*arguments, "-o", str(out), "--store", str(tmp_path / "goldens")])
    assert done.exit_code == 0, done.output
    index = json.loads((out / "index.json").read_text())
    assert index["written"] == "onnx" and set(index["cases"]) == {"sd15/clip/short", "silu/f32/bend-x33x77"}
    for name in index["cases"]:
        folder = out / name
        onnx.checker.check_model(str(folder / "model.onnx"), full_check=True)
        truth = onnx.load_tensor(str(folder / "test_data_set_0/output_0.pb"))
        model = open_graph(folder / "model.onnx")
        given = {
            value.name: onnx.numpy_helper.to_array(onnx.load_tensor(str(folder / f"test_data_set_0/input_{i}.pb")))
            for i, value in enumerate(model.proto.graph.input)
        }
        found = next(iter(evaluate(model, given).outputs.values()))
        np.testing.assert_allclose(found, onnx.numpy_helper.to_array(truth), rtol=1e-5, atol=1e-5)
