"""Qwen-Image 2.1's files: ComfyUI's names, which GGUF files have too, and diffusers'."""

import json

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.cli import app
from refsd.models.catalogue import NETWORKS
from refsd.numerics.errors import BadInput
from refsd.weights import open_checkpoint

SIZE = small.FAMILIES["qwen-image21"]["qwen-image21"]
GATE_UP = "transformer_blocks.1.img_mlp.gate_up.weight"


@pytest.fixture(scope="module")
def arrays():
    return small.weights("qwen-image21", SIZE)


@pytest.fixture(scope="module")
def diffusers(arrays):
    return small.written("qwen-image21", "diffusers", SIZE, arrays)


def hold(path, arrays):
    weights = open_checkpoint(path).components["qwen-image21"].weights
    assert weights.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(weights[name].values(), array, name)


def info(path):
    told = CliRunner().invoke(app, ["info", str(path), "--json"])
    assert told.exit_code == 0, told.output
    return json.loads(told.output)


@pytest.mark.parametrize("prefix", ["", "diffusion_model.", "model.diffusion_model."])
@pytest.mark.parametrize("layout", ["comfyui", "diffusers"])
def test_one_file(tmp_path, arrays, diffusers, prefix, layout):
    named = arrays if layout == "comfyui" else diffusers
    save_file({prefix + name: array for name, array in named.items()}, tmp_path / "a.safetensors")
    hold(tmp_path / "a.safetensors", arrays)
    read = info(tmp_path / "a.safetensors")
    assert read["family"] == "qwen-image21" and read["components"].keys() == {"qwen-image21"}
    assert all(read["components"]["qwen-image21"][what] == [] for what in ("missing", "unused", "misshapen"))


@pytest.mark.parametrize("layout", ["comfyui", "diffusers"])
def test_a_gguf(tmp_path, arrays, diffusers, layout):
    named = arrays if layout == "comfyui" else diffusers
    hold(small.save_gguf(tmp_path / "a.gguf", named, arch="qwen_image21"), arrays)


def test_a_folder(tmp_path, arrays, diffusers):
    folder = NETWORKS["qwen-image21"].folder
    place = tmp_path / "transformer"
    place.mkdir()
    save_file(diffusers, place / folder.file)
    (place / "config.json").write_text(json.dumps(folder.config(SIZE)))
    hold(tmp_path, arrays)


def test_a_transformer_whose_words_have_the_sampler_s_time_is_refused(tmp_path, diffusers):
    folder = NETWORKS["qwen-image21"].folder
    save_file(diffusers, tmp_path / folder.file)
    (tmp_path / "config.json").write_text(json.dumps({**folder.config(SIZE), "causal_condition": False}))
    with pytest.raises(BadInput, match="causal_condition is False; refsd computes True only"):
        open_checkpoint(tmp_path)


def test_a_gate_of_another_length_is_named(tmp_path, arrays):
    save_file(arrays | {GATE_UP: np.zeros((7, SIZE.hidden), np.float32)}, tmp_path / "a.safetensors")
    told = CliRunner().invoke(app, ["info", str(tmp_path / "a.safetensors")])
    assert told.exit_code == 2 and "misshapen" in told.output and GATE_UP in told.output
