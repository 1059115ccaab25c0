"""The smallest adopted module, from its folder to verdicts, without torch."""

import json
import shutil
import subprocess
import sys

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from refsd.adoption.folder import PIPELINE, Pipeline, drawn, read, write_note
from refsd.cli import app
from refsd.engines.reference import Reference
from refsd.golden.store import Store
from refsd.judges.model import ModelJudge
from refsd.networks.wrong_operations import GeluForSilu
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32
from tests.refsd.adoption.conftest import ROOT

ENGINE = ROOT / "examples/adopt/engine.py"
TAPS = ["conv_in", "norm", "silu", "conv_out", "add"]


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def conform(folder, tmp_path, *bug):
    program = " ".join(["exec:" + sys.executable, str(ENGINE), *bug])
    return run("conform", program, "--cases", folder, "--report", tmp_path / "report")


def dump(folder, tmp_path, *bug):
    """What the engine writes to files."""
    case = read(folder)
    save_file({k: x.values() for k, x in case.realize().items()}, tmp_path / "inputs.safetensors")
    request = {"request": "run", **{k: str(tmp_path / f"{k}.safetensors") for k in ("inputs", "output", "taps")}}
    subprocess.run([sys.executable, ENGINE, *bug], input=json.dumps(request).encode(), check=True)
    return load_file(request["output"]) | load_file(request["taps"])


def test_its_answer_is_computed_again(tiny):
    """On the machine that adopted it bit for bit; a BLAS for another processor sums in another order."""
    case = read(tiny)
    assert Store(tiny).has(case)
    truth = Store(tiny).get(case.name).outputs["out"]
    found = Reference().run(case, case.realize())["out"]
    assert found.shape == truth.shape == (2, 3, 12, 8)
    assert np.linalg.norm(found - truth) <= 1e-14 * np.linalg.norm(truth)


def test_weights_are_drawn_by_their_names(tiny):
    inputs = read(tiny).realize()
    weight = inputs["conv_out.weight"].values()
    np.testing.assert_array_equal(weight, drawn("graph/tiny", "conv_out.weight", (3, 16, 3, 3)).values())
    assert not np.array_equal(weight.ravel(), inputs["conv_in.weight"].values().ravel())


def test_a_right_engine_conforms(tiny, tmp_path):
    done = conform(tiny, tmp_path)
    assert done.exit_code == 0, done.output


def test_a_wrong_engine_is_placed_and_named(tiny, tmp_path):
    done = conform(tiny, tmp_path, "--bug")
    assert done.exit_code == 1, done.output
    (result,) = json.loads((tmp_path / "report/conform.json").read_bytes())["results"]
    assert result["place"] == "norm"
    # 1e-6 is asked and 1e-5 is taken: nothing tells the two apart.
    assert result["causes"] == ["eps ten times too large", "eps is 1e-5, whatever is asked"]
    assert "shrink" not in done.output


def test_a_dump_is_compared_with_the_network_of_a_pipeline_that_has_its_names(tiny, tmp_path):
    pipe = tmp_path / "pipe"
    shutil.copytree(tiny, pipe / "tiny")
    other = shutil.copytree(tiny, pipe / "vae.decode")
    note = json.loads((other / "case.json").read_text())
    note["case"] |= {"name": "graph/other", "op": "model/graph/other"}
    (other / "case.json").write_text(json.dumps(note))
    graph = onnx.load(other / "graph.onnx")
    for node in graph.graph.node:
        del node.metadata_props[:]
        node.name = node.name.replace("norm", "norm_out").replace("conv", "post_conv")
    onnx.save(graph, other / "graph.onnx")
    write_note(pipe / PIPELINE, Pipeline({}, ["tiny", "vae.decode"], {}, [], "Euler"))
    save_file(dump(tiny, tmp_path), tmp_path / "right.safetensors")
    done = run("compare", tmp_path / "right.safetensors", pipe)
    assert done.exit_code == 0 and "4 of 4 taps right" in done.output, (done.output, done.exception)
    assert f"of the pipeline's networks {pipe / 'tiny'} has these tensors" in done.output, done.output
    for name, said in (("out", "1 name of the tensors in each of them"), ("q", "no name of a tensor in any")):
        save_file({name: np.zeros((2, 3, 12, 8), np.float32)}, tmp_path / "y.safetensors")
        done = run("compare", tmp_path / "y.safetensors", pipe)
        assert f"{said}: name the network's folder: {pipe / 'tiny'}, {other}" in str(done.exception), done.exception


def test_a_dump_is_compared(tiny, tmp_path):
    save_file(dump(tiny, tmp_path), tmp_path / "right.safetensors")
    save_file(dump(tiny, tmp_path, "--bug"), tmp_path / "wrong.safetensors")
    done = run("compare", tmp_path / "right.safetensors", tiny)
    assert done.exit_code == 0 and "4 of 4 taps right" in done.output
    done = run("compare", tmp_path / "wrong.safetensors", tiny)
    assert done.exit_code == 1 and "at norm" in done.output and "eps ten times too large" in done.output


def test_two_dumps_of_a_folder_disagree_as_its_case_s_do(tiny, tmp_path):
    for name, bug in (("right", ()), ("wrong", ("--bug",))):
        save_file(dump(tiny, tmp_path, *bug), tmp_path / f"{name}.safetensors")
    right, wrong = (f"dump:{tmp_path / name}.safetensors" for name in ("right", "wrong"))
    assert run("disagree", right, right, tiny).exit_code == 0
    done = run("disagree", right, wrong, tiny)
    assert done.exit_code == 1 and "they part at norm" in done.output, (done.output, done.exception)


def test_the_taps_of_a_folder_are_shown(tiny):
    shown = run("golden", "show", tiny, "--taps", "conv_*")
    assert [line.split()[0] for line in shown.output.splitlines()] == ["conv_in", "conv_out"], shown.exception
    assert "[2, " in shown.output
    assert "no tap matches 'q'" in str(run("golden", "show", tiny, "--taps", "q").exception)


def test_outputs_alone_are_explained_by_known_bugs_of_models(tiny, tmp_path):
    case = read(tiny)
    save_file(ModelJudge().answer(case, case.realize(), GeluForSilu(FLOAT32)), tmp_path / "wrong.safetensors")
    done = run("compare", tmp_path / "wrong.safetensors", tiny)
    assert done.exit_code == 1 and "SiLU is GELU" in done.output, done.output


def test_a_dump_under_its_own_names_is_known_again(tiny, tmp_path):
    found = dump(tiny, tmp_path, "--bug")
    others = {"out": found["out"]} | {f"blk.{i}": found[name] for i, name in enumerate(("conv_in", "norm"))}
    save_file(others, tmp_path / "others.safetensors")
    names = [option for pair in ("blk.0=conv_in", "blk.1=norm") for option in ("--names", pair)]
    assert "at norm" in run("compare", tmp_path / "others.safetensors", tiny, *names).output
    place = f"dump:{tmp_path / 'others.safetensors'}"
    done = run("conform", place, "--cases", tiny, "--report", tmp_path / "report")
    (result,) = json.loads((tmp_path / "report/conform.json").read_bytes())["results"]
    assert (done.exit_code, result["place"]) == (1, "norm")


def test_names_tell_what_no_contents_tell(tiny, tmp_path):
    found = dump(tiny, tmp_path)
    noise = np.random.default_rng(0).standard_normal(found["conv_in"].shape).astype(np.float32)
    save_file({"out": found["out"], "blk.0": noise}, tmp_path / "others.safetensors")
    place = f"dump:{tmp_path / 'others.safetensors'}"
    for names, wrong in (((), ""), (("--names", "blk.0=conv_in"), "conv_in")):
        done = run("conform", place, "--cases", tiny, "--report", tmp_path / "report", *names)
        (result,) = json.loads((tmp_path / "report/conform.json").read_bytes())["results"]
        assert (done.exit_code, result["place"]) == (bool(wrong), wrong), result
    done = run("conform", place, "--cases", tiny, "--report", tmp_path / "report", "--names", "blk.9=conv_in")
    assert done.exit_code and "blk.9" in done.output + str(done.exception)


def test_reference_taps_have_the_names_of_the_module_tree(tiny):
    case = read(tiny)
    assert [*ModelJudge().reference_taps(case, case.realize())] == TAPS


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("case.json", b"{}", "not the case of an adopted graph"),
        ("case.json", None, "neither a case"),
        ("graph.onnx", b"no graph", "not an ONNX model"),
        ("inputs.safetensors", b"12345678", "inputs.safetensors"),
    ],
)
def test_a_damaged_folder_is_refused(tiny, tmp_path, file, change, says):
    save_file({"out": np.zeros((2, 3, 12, 8), np.float32)}, tmp_path / "y.safetensors")
    (tiny / file).unlink()
    if change is not None:
        (tiny / file).write_bytes(change)
    done = run("compare", tmp_path / "y.safetensors", tiny)
    error = str(done.exception)
    assert isinstance(done.exception, BadInput) and (says in error or file == "case.json"), error


def test_inputs_that_are_not_the_case_s_are_refused(tiny):
    save_file({"x": np.zeros((2, 3, 12, 9), np.float32)}, tiny / "inputs.safetensors")
    with pytest.raises(BadInput, match=r"x is f32 \[2, 3, 12, 9\], case.json says f32 \[2, 3, 12, 8\]"):
        read(tiny)


def test_its_golden_is_verified_shown_and_found_damaged(tiny):
    again = run("golden", "verify", tiny, "--recompute")
    assert again.exit_code == 0 and "1 of 1 golden whole, 0 problems" in again.output, again.output
    shown = run("golden", "show", tiny)
    assert shown.exit_code == 0 and "conv_in.weight f32 [16, 3, 3, 3]" in shown.output, shown.output
    (blob,) = (tiny / "blobs").iterdir()
    blob.write_bytes(blob.read_bytes() + b"x")
    damaged = run("golden", "verify", tiny)
    assert damaged.exit_code == 1 and "0 of 1 golden whole" in damaged.output, damaged.output
