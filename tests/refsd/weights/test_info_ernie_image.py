"""Ernie-Image's files: diffusers' names, which ComfyUI and GGUF files have too."""

import json

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.cli import app
from refsd.models.catalogue import NETWORKS
from refsd.weights import open_checkpoint

SIZE = small.FAMILIES["ernie-image"]["ernie-image"]


@pytest.fixture(scope="module")
def arrays():
    return small.weights("ernie-image", SIZE)


def hold(path, arrays):
    weights = open_checkpoint(path).components["ernie-image"].weights
    assert weights.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(weights[name].values(), array, name)


@pytest.mark.parametrize("prefix", ["", "diffusion_model.", "model.diffusion_model."])
def test_one_file(tmp_path, arrays, prefix):
    save_file({prefix + name: array for name, array in arrays.items()}, tmp_path / "a.safetensors")
    hold(tmp_path / "a.safetensors", arrays)
    told = CliRunner().invoke(app, ["info", str(tmp_path / "a.safetensors"), "--json"])
    read = json.loads(told.output)
    assert told.exit_code == 0 and read["family"] == "ernie-image" and read["components"].keys() == {"ernie-image"}
    assert all(read["components"]["ernie-image"][what] == [] for what in ("missing", "unused", "misshapen"))


def test_a_gguf_and_a_folder(tmp_path, arrays):
    hold(small.save_gguf(tmp_path / "a.gguf", arrays, arch="ernie_image"), arrays)
    folder = NETWORKS["ernie-image"].folder
    place = tmp_path / "transformer"
    place.mkdir()
    save_file(arrays, place / folder.file)
    (place / "config.json").write_text(json.dumps(folder.config(SIZE)))
    hold(tmp_path, arrays)


@pytest.mark.parametrize("name", ["layers.1.mlp.up_proj.weight", "text_proj.weight"])
def test_a_tensor_of_another_shape_is_named(tmp_path, arrays, name):
    file = tmp_path / "a.safetensors"
    save_file(arrays | {name: np.zeros((3, 5), np.float32)}, file)
    told = CliRunner().invoke(app, ["info", str(file)])
    assert told.exit_code == 2 and "misshapen" in told.output and name in told.output
