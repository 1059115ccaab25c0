"""MiniMax-H3's files: ComfyUI's names, whole and pruned, and diffusers' folder."""

import json

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.cli import app
from refsd.models.catalogue import NETWORKS
from refsd.models.minimax_h3.network import PRUNED, minimax_h3_shapes, minimax_h3_size
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored
from refsd.weights import open_checkpoint

NETWORK, SIZE = NETWORKS["minimax-h3"], small.FAMILIES["minimax-h3"]["minimax-h3"]
SMALL_PRUNED = SIZE._replace(frequencies=0, time_hidden=0, time_dim=6, curve=9)


@pytest.fixture(scope="module", params=[SIZE, SMALL_PRUNED], ids=["whole", "pruned"])
def arrays(request):
    return small.weights("minimax-h3", request.param)


def info(path):
    told = CliRunner().invoke(app, ["info", str(path), "--json"])
    assert told.exit_code == 0, told.output
    return json.loads(told.output)


@pytest.mark.parametrize("prefix", ["", "diffusion_model.", "model.diffusion_model."])
def test_one_file(tmp_path, arrays, prefix):
    """ComfyUI's files have the rotary frequencies too, which refsd computes."""
    more = {"rope.inv_freq": np.ones(16, np.float32)}
    save_file({prefix + name: array for name, array in {**arrays, **more}.items()}, tmp_path / "a.safetensors")
    read = info(tmp_path / "a.safetensors")
    assert read["family"] == "minimax-h3" and read["components"].keys() == {"minimax-h3"}
    assert all(read["components"]["minimax-h3"][what] == [] for what in ("missing", "unused", "misshapen"))
    weights = open_checkpoint(tmp_path / "a.safetensors").components["minimax-h3"].weights
    for name, array in arrays.items():
        np.testing.assert_array_equal(weights[name].values(), array, name)


def test_a_gguf(tmp_path, arrays):
    read = info(small.save_gguf(tmp_path / "a.gguf", arrays, arch="minimax_h3"))
    assert read["components"]["minimax-h3"]["missing"] == []


def test_a_folder_has_q_k_and_v_apart_and_the_value_before_the_gate(tmp_path):
    arrays = small.weights("minimax-h3", SIZE)
    theirs = NETWORK.folder.layout.of_size(SIZE).write({name: stored(array) for name, array in arrays.items()})
    place = tmp_path / "transformer"
    place.mkdir()
    save_file({name: np.asarray(w.values()) for name, w in theirs.items()}, place / NETWORK.folder.file)
    (place / "config.json").write_text(json.dumps(NETWORK.folder.config(SIZE)))
    weights = open_checkpoint(tmp_path).components["minimax-h3"].weights
    for name, array in arrays.items():
        np.testing.assert_array_equal(weights[name].values(), array, name)
    fused, inner = arrays["blocks.1.attn.qkv_proj.weight"], SIZE.heads * SIZE.head_dim
    np.testing.assert_array_equal(
        theirs["transformer_blocks.1.attn.to_k.weight"].values(), fused[inner : 2 * inner]
    )
    value = theirs["transformer_blocks.1.ff.net.0.proj.weight"].values()[: SIZE.mlp]
    np.testing.assert_array_equal(value, arrays["blocks.1.mlp.fc1.weight"][SIZE.mlp :])


def test_the_size_of_a_pruned_file_is_read_back():
    for size in (PRUNED, SMALL_PRUNED):
        assert minimax_h3_size(minimax_h3_shapes(size)) == size


def test_frequencies_of_an_axis(tmp_path):
    path = tmp_path / "config.json"
    assert NETWORK.config(path, {}, {"rope_freq_dim": 8})["axes_dim"] == [16, 16, 16]
    for wrong in (0, 16.0, True):
        with pytest.raises(BadInput, match=r"rope_freq_dim is .*; a whole number above 0 expected"):
            NETWORK.config(path, {}, {"rope_freq_dim": wrong})


@pytest.mark.parametrize("name", ["blocks.1.mlp.fc1.weight", "condition_proj.weight"])
def test_a_tensor_of_another_shape_is_named(tmp_path, arrays, name):
    save_file(arrays | {name: np.zeros((3, 5), np.float32)}, tmp_path / "a.safetensors")
    told = CliRunner().invoke(app, ["info", str(tmp_path / "a.safetensors")])
    assert told.exit_code == 2 and "misshapen" in told.output and name in told.output
