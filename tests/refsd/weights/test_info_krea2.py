"""Krea 2's files: diffusers' names, and Krea's own, which ComfyUI and GGUF files have."""

import json

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.cli import app
from refsd.models.catalogue import NETWORKS
from refsd.weights import open_checkpoint

SIZE = small.FAMILIES["krea2"]["krea2"]
COMFYUI = "model.diffusion_model."


@pytest.fixture(scope="module")
def arrays():
    return small.weights("krea2", SIZE)


@pytest.fixture(scope="module")
def native(arrays):
    """As Krea's own export: a branch of zeros in the last layer besides, which no forward reads."""
    branch = {f"last.{name}.weight": np.zeros((2, 2), np.float32) for name in ("up", "down")}
    return small.written("krea2", "krea", SIZE, arrays) | branch


def test_names_of_krea_s_own_files(native):
    assert {"first.weight", "tproj.1.bias", "txtmlp.0.scale", "blocks.1.attn.qknorm.knorm.scale"} <= native.keys()
    assert native["blocks.0.mod.lin"].shape == (6 * SIZE.hidden,)
    assert native["txtfusion.projector.weight"].shape == (1, SIZE.states)
    assert native["last.modulation.lin"].shape == (2, SIZE.hidden)


def hold(path, arrays):
    weights = open_checkpoint(path).components["krea2"].weights
    assert weights.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(weights[name].values(), array, name)


@pytest.mark.parametrize("prefix", ["", "diffusion_model.", COMFYUI])
def test_one_file(tmp_path, arrays, native, prefix):
    save_file({prefix + name: array for name, array in native.items()}, tmp_path / "a.safetensors")
    hold(tmp_path / "a.safetensors", arrays)
    told = CliRunner().invoke(app, ["info", str(tmp_path / "a.safetensors"), "--json"])
    read = json.loads(told.output)
    assert told.exit_code == 0 and read["family"] == "krea2" and read["components"].keys() == {"krea2"}
    assert all(read["components"]["krea2"][what] == [] for what in ("missing", "unused", "misshapen"))


def test_a_gguf_whose_writer_drops_axes_of_length_1(tmp_path, arrays, native):
    flat = native | {"txtfusion.projector.weight": native["txtfusion.projector.weight"][0]}
    hold(small.save_gguf(tmp_path / "a.gguf", flat, arch="krea2"), arrays)


def test_a_folder(tmp_path, arrays):
    folder = NETWORKS["krea2"].folder
    place = tmp_path / "transformer"
    place.mkdir()
    save_file(arrays, place / folder.file)
    (place / "config.json").write_text(json.dumps(folder.config(SIZE)))
    hold(tmp_path, arrays)


@pytest.mark.parametrize("name", ["blocks.1.mod.lin", "last.modulation.lin"])
def test_a_table_of_another_length_is_named(tmp_path, native, name):
    save_file(native | {name: np.zeros(7, np.float32)}, tmp_path / "a.safetensors")
    told = CliRunner().invoke(app, ["info", str(tmp_path / "a.safetensors")])
    assert told.exit_code == 2 and "misshapen" in told.output
