"""What values show: exchanged layers where the siblings tell, nothing where they do not."""

import numpy as np
import pytest
from damaged_files import save
from typer.testing import CliRunner

from refsd.cli import app
from refsd.diagnosis.values import judge, read_values
from refsd.files.formats import open_weights
from refsd.golden.case import ModelRecipe
from refsd.numerics.tensor import stored
from refsd.weights import recipes
from refsd.weights.checkpoint import survey

BLOCKS = ("layers.0", "layers.1", "noise_refiner.0", "noise_refiner.1", "context_refiner.0", "context_refiner.1")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = recipes.make(ModelRecipe("zimage", "f32", True), tmp_path_factory.mktemp("m") / "a.safetensors")
    return dict(open_weights(path, mapped=False).items())


def findings(path, tensors):
    return judge(read_values(survey(save(path / "a.safetensors", tensors)), sampled=True))


def scaled(tensor, factor):
    return stored(tensor.values() * np.float32(factor))


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_gate_and_a_value_are_swapped(model, tmp_path, factor):
    """Told if the gates are wider in all other blocks; not if both are alike."""
    tensors = dict(model)
    for block in BLOCKS:
        tensors[f"{block}.feed_forward.w1.weight"] = scaled(tensors[f"{block}.feed_forward.w1.weight"], factor)
    assert findings(tmp_path, tensors) == []
    one, other = (f"layers.1.feed_forward.{w}.weight" for w in ("w1", "w3"))
    tensors[one], tensors[other] = tensors[other], tensors[one]
    found = findings(tmp_path, tensors)
    assert [finding.kind for finding in found] == (["exchanged"] if factor > 1 else [])
    for finding in found:
        assert finding.tensors == (one, other)
        assert not finding.sure
        assert "probably swapped" in finding.text
        assert "in 5 siblings as 1.50" in finding.text


def test_queries_and_keys_of_a_fused_layer(model, tmp_path):
    tensors = dict(model)
    for block in BLOCKS:
        name = f"{block}.attention.qkv.weight"
        q, k, v = np.split(np.array(tensors[name].values()), 3)
        rows = (k, 2 * q, v) if block == "layers.0" else (2 * q, k, v)
        tensors[name] = stored(np.concatenate(rows))
    (finding,) = findings(tmp_path, tensors)
    assert finding.text.startswith("probably swapped: q and k in layers.0.attention.qkv.weight: ")


def _half_zero(tensor):
    values = np.array(tensor.values())
    values[: len(values) // 2] = 0
    return stored(values)


def test_a_matrix_that_is_half_zero_unlike_its_siblings(model, tmp_path):
    name = "layers.1.feed_forward.w1.weight"
    (finding,) = findings(tmp_path, {**model, name: _half_zero(model[name])})
    assert finding.text == f"50 % of {name} is exactly zero, hardly any of 5 siblings"
    assert finding.tensors == (name,) and not finding.sure


@pytest.mark.parametrize(
    "change",
    [
        {f"{block}.feed_forward.w1.weight": _half_zero for block in BLOCKS},  # pruned
        {"x_embedder.weight": _half_zero},  # nobody else has such a matrix
        {f"{block}.attention_norm1.weight": lambda t: stored(t.values() * 0) for block in BLOCKS},
        {f"{block}.adaLN_modulation.0.bias": _half_zero for block in BLOCKS[:1]},
    ],
)
def test_zeros_that_may_be_meant_are_told_and_nothing_is_blamed(model, tmp_path, change):
    matching = {name: change[name](tensor) for name, tensor in model.items() if name in change}
    assert matching
    tensors = {**model, **matching}
    assert findings(tmp_path, tensors) == []
    told = CliRunner().invoke(app, ["info", str(tmp_path / "a.safetensors"), "--values"])
    assert told.exit_code == 0
    matrices = [name for name in matching if tensors[name].data.ndim > 1]
    assert ("half or more is exactly zero in" in told.output) == bool(matrices)
    assert all(f"{name} (50 %)" in told.output for name in matrices)
