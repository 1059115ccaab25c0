"""FLUX.3's files: Black Forest Labs' names, which ComfyUI and GGUF files have, and diffusers'."""

import json

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.cli import app
from refsd.models.catalogue import NETWORKS
from refsd.weights import open_checkpoint

MODELS = "flux3", "flux3-distilled"
COMFYUI = "model.diffusion_model."


def arrays_of(model):
    return small.weights("flux3", small.FAMILIES[model]["flux3"])


def hold(path, arrays):
    weights = open_checkpoint(path).components["flux3"].weights
    assert weights.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(weights[name].values(), array, name)


@pytest.mark.parametrize("prefix", ["", "diffusion_model.", COMFYUI])
@pytest.mark.parametrize("model", MODELS)
def test_one_file(tmp_path, model, prefix):
    """With a head of the training, which no forward reads."""
    arrays = arrays_of(model)
    more = {"repa_projectors.0.weight": np.zeros((2, 2), np.float32)}
    save_file({prefix + name: array for name, array in (arrays | more).items()}, tmp_path / "a.safetensors")
    hold(tmp_path / "a.safetensors", arrays)
    told = CliRunner().invoke(app, ["info", str(tmp_path / "a.safetensors"), "--json"])
    read = json.loads(told.output)
    assert told.exit_code == 0 and read["family"] == model and read["components"].keys() == {"flux3"}
    assert all(read["components"]["flux3"][what] == [] for what in ("missing", "unused", "misshapen"))


@pytest.mark.parametrize("model", MODELS)
def test_a_gguf(tmp_path, model):
    arrays = arrays_of(model)
    hold(small.save_gguf(tmp_path / "a.gguf", arrays, arch="flux3"), arrays)


def test_a_file_whose_norms_are_named_weight(tmp_path):
    arrays = arrays_of("flux3")
    save_file(
        {name.replace("_norm.scale", "_norm.weight"): a for name, a in arrays.items()}, tmp_path / "a.safetensors"
    )
    hold(tmp_path / "a.safetensors", arrays)


@pytest.mark.parametrize("model", MODELS)
def test_a_folder(tmp_path, model):
    size, arrays, folder = small.FAMILIES[model]["flux3"], arrays_of(model), NETWORKS["flux3"].folder
    place = tmp_path / "transformer"
    place.mkdir()
    save_file(small.written("flux3", "diffusers", size, arrays), place / folder.file)
    (place / "config.json").write_text(json.dumps(folder.config(size)))
    hold(tmp_path, arrays)


@pytest.mark.parametrize("name", ["single_blocks.1.mlp_in.weight", "emb_in.image_cond.weight"])
def test_a_tensor_of_another_shape_is_named(tmp_path, name):
    arrays = arrays_of("flux3")
    save_file(arrays | {name: np.zeros((7, 9), np.float32)}, tmp_path / "a.safetensors")
    told = CliRunner().invoke(app, ["info", str(tmp_path / "a.safetensors")])
    assert told.exit_code == 2 and "misshapen" in told.output and name in told.output
