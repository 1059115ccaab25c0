"""refsd export --format onnx: backend tests, which ONNX's own reference answers within the bound."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from typer.testing import CliRunner

from refsd.cases import CASES
from refsd.cli import app
from refsd.onnx.case_model import case_model
from refsd.onnx.export import save

NAMES = ("silu/f32/bend-x33x77", "linear/q8_0/tokens-x77x320-o33")
BLOCKS = next(name for name in CASES if name.startswith("dequantize/q4_k"))


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(*arguments: str):
    return CliRunner().invoke(app, ["export", *arguments, "-o", "out", "--format", "onnx"])


def tensor(path: Path) -> tuple[str, np.ndarray]:
    proto = onnx.TensorProto.FromString(path.read_bytes())
    return proto.name, numpy_helper.to_array(proto)


def test_each_case_is_a_backend_test_that_onnx_passes():
    done = call(*NAMES, BLOCKS, "--numerics", "onnx-f32")
    assert done.exit_code == 0, done.output
    assert "left out 1 case: ONNX has no q4_k" in done.output
    index = json.loads(Path("out/index.json").read_text())
    assert {*index["cases"]} == {*NAMES}
    for name, entry in index["cases"].items():
        folder = Path("out") / name
        feeds = dict(tensor(folder / "test_data_set_0" / f"input_{i}.pb") for i in range(len(entry["inputs"])))
        evaluator = ReferenceEvaluator(str(folder / "model.onnx"))
        assert [*feeds] == evaluator.input_names == [*entry["inputs"]]
        output, expected = tensor(folder / "test_data_set_0" / "output_0.pb")
        assert (output, expected.dtype) == ("y", np.float32)
        truth, bound = (np.load(Path("out") / entry[key]["y"]["file"]) for key in ("truth", "bound"))
        np.testing.assert_array_equal(expected, truth.astype(np.float32))
        assert (np.abs(evaluator.run(None, feeds)[0] - truth) <= bound).all()


def test_quantized_weights_say_what_became_of_them():
    case = CASES[NAMES[1]]
    notes = {entry.key: entry.value for entry in case_model(case, case.realize()).model.metadata_props}
    assert notes == {"weight.weight": "q8_0 as DequantizeLinear of blocks of 32", "refsd.case": case.name}


def test_large_weights_stand_beside_the_model(tmp_path):
    case = CASES["linear/f32/tokens-x77x320-o33"]
    built = case_model(case, case.realize())
    save(built, tmp_path, 1000)
    assert (tmp_path / "model.onnx.data").stat().st_size >= 33 * 320 * 4
    assert (tmp_path / "model.onnx").stat().st_size < 5000
    again = ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, built.feeds)[0]
    fresh = case_model(case, case.realize())
    np.testing.assert_array_equal(again, ReferenceEvaluator(fresh.model).run(None, fresh.feeds)[0])


def test_what_onnx_cannot_say_at_all_is_bad_input():
    done = call(BLOCKS)
    assert done.exit_code != 0
    assert "ONNX has no q4_k; write --format safetensors" in str(done.exception)
    assert not Path("out").exists()
