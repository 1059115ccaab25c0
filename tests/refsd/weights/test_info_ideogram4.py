"""Ideogram 4's files: Ideogram's names, which ComfyUI and GGUF files have, and a diffusers folder."""

import json

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.cli import app
from refsd.models.catalogue import NETWORKS
from refsd.weights import open_checkpoint

SIZE = small.FAMILIES["ideogram4"]["ideogram4"]


@pytest.fixture(scope="module")
def arrays():
    return small.weights("ideogram4", SIZE)


def hold(path, arrays):
    weights = open_checkpoint(path).components["ideogram4"].weights
    assert weights.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(weights[name].values(), array, name)


@pytest.mark.parametrize("prefix", ["", "diffusion_model.", "model.diffusion_model."])
def test_one_file(tmp_path, arrays, prefix):
    save_file({prefix + name: array for name, array in arrays.items()}, tmp_path / "a.safetensors")
    hold(tmp_path / "a.safetensors", arrays)
    told = CliRunner().invoke(app, ["info", str(tmp_path / "a.safetensors"), "--json"])
    read = json.loads(told.output)
    assert told.exit_code == 0 and read["family"] == "ideogram4" and read["components"].keys() == {"ideogram4"}
    assert all(read["components"]["ideogram4"][what] == [] for what in ("missing", "unused", "misshapen"))


def test_a_gguf_and_a_folder(tmp_path, arrays):
    hold(small.save_gguf(tmp_path / "a.gguf", arrays, arch="ideogram4"), arrays)
    folder = NETWORKS["ideogram4"].folder
    place = tmp_path / "transformer"
    place.mkdir()
    split = {name: array for name, array in arrays.items() if ".qkv." not in name}
    for name in arrays.keys() - split.keys():
        for to, part in zip(("to_q", "to_k", "to_v"), np.split(arrays[name], 3), strict=True):
            split[name.replace("qkv", to)] = part
    theirs = {name.replace("attention.o.", "attention.to_out.0."): array for name, array in split.items()}
    save_file(theirs, place / folder.file)
    (place / "config.json").write_text(json.dumps(folder.config(SIZE)))
    hold(tmp_path, arrays)


@pytest.mark.parametrize("name", ["layers.1.feed_forward.w3.weight", "llm_cond_proj.weight"])
def test_a_tensor_of_another_shape_is_named(tmp_path, arrays, name):
    file = tmp_path / "a.safetensors"
    save_file(arrays | {name: np.zeros((3, 5), np.float32)}, file)
    told = CliRunner().invoke(app, ["info", str(file)])
    assert told.exit_code == 2 and "misshapen" in told.output and name in told.output
