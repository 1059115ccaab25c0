"""What storage types cost a model."""

import json

import numpy as np
import pytest

from refsd.cli import main
from refsd.components import load
from refsd.diagnosis.quality import Quantized, decibels, measure
from refsd.diagnosis.ranges import drawn_inputs
from refsd.golden.case import ModelRecipe
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.numerics.named import named
from refsd.weights import open_checkpoint, recipes


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return recipes.make(ModelRecipe("zimage", "f32", True), tmp_path_factory.mktemp("m") / "a.safetensors")


@pytest.fixture(scope="module")
def loaded(path):
    m, params = load(open_checkpoint(path), "zimage", named("float32", []))
    return m, drawn_inputs("zimage", m), params


def test_fewer_bits_cost_more_and_a_matrix_helps(loaded):
    m, inputs, params = loaded
    rows = {
        (row.type, row.importance): row for row in measure("zimage", m, inputs, params, ["q8_0", "q4_0", "q4_k"])
    }
    assert set(rows) == {
        ("q8_0", False),
        *((type, matrix) for type in ("q4_0", "q4_k") for matrix in (False, True)),
    }
    assert 1e-3 < rows["q8_0", False].error < min(rows["q4_k", False].error, rows["q4_0", False].error) < 0.5
    assert rows["q4_0", True].error < rows["q4_0", False].error
    for row in rows.values():
        errors = list(row.layers.values())
        assert errors == sorted(errors, reverse=True)
        assert "layers.0.feed_forward.w2" in row.layers
        assert "x_embedder" not in row.layers
    assert rows["q4_k", False].bits == 4.5


def test_embeddings_and_vectors_keep_their_type(loaded):
    m, _, _ = loaded
    weights = Quantized(m.weights, BLOCK_TYPES["q4_0"], {})
    for name in ("x_embedder.weight", "final_layer.linear.weight", "layers.0.attention_norm1.weight"):
        assert weights[name].type == "f32"
    ours = weights["layers.0.attention.out.weight"]
    exact = m.weights["layers.0.attention.out.weight"].values()
    assert ours.type == "q4_0"
    assert 0.01 < np.linalg.norm(ours.values() - exact) / np.linalg.norm(exact) < 0.15


def test_a_type_that_is_none(loaded):
    with pytest.raises(BadInput, match="--types q9_9: expected some of"):
        list(measure("zimage", *loaded, ["q8_0", "q9_9"]))


def test_the_table(path, monkeypatch, capsys):
    for options in ((), ("--json",)):
        monkeypatch.setattr("sys.argv", ["refsd", "quality", str(path), "--types", "q8_0", *options])
        with pytest.raises(SystemExit) as exit:
            main()
        assert not exit.value.code
        out = capsys.readouterr().out
        if options:
            (row,) = json.loads(out)
            assert row["type"] == "q8_0"
        else:
            assert out.splitlines()[1].startswith("q8_0         no     35    8.5")


def test_decibels():
    assert decibels(0.1) == pytest.approx(20)
    assert decibels(0.0) == float("inf")
