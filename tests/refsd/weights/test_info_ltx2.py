"""LTX-2's files: Lightricks' names and diffusers' folder; LTX-2.3 is told by what it modulates."""

import json

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.cli import app
from refsd.models.catalogue import NETWORKS
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored
from refsd.weights import open_checkpoint

NETWORK, OLD = NETWORKS["ltx2"], small.FAMILIES["ltx2"]["ltx2"]
STREAMS = "video", "audio"
SIZES = {"ltx2": OLD, "ltx23": OLD._replace(caption=0, gates=2, audio_gates=2, prompts=True)}


@pytest.fixture(scope="module", params=SIZES)
def variant(request):
    return request.param, small.weights("ltx2", SIZES[request.param])


def info(path):
    told = CliRunner().invoke(app, ["info", str(path), "--json"])
    assert told.exit_code == 0, told.output
    return json.loads(told.output)


@pytest.mark.parametrize("prefix", ["", "diffusion_model.", "model.diffusion_model."])
def test_one_file(tmp_path, variant, prefix):
    """Lightricks' files have the connectors beside the transformer, whole ones the sound's other networks, too."""
    name, arrays = variant
    more = {f"{stream}_embeddings_connector.learnable_registers": np.ones((4, 8), "f") for stream in STREAMS}
    named = {prefix + key: array for key, array in {**arrays, **more}.items()}
    beside = (
        "audio_vae.decoder.conv_in.conv.weight",
        "vocoder.conv_pre.weight",
        "text_embedding_projection.weight",
    )
    rng = np.random.default_rng(1)
    named |= {key: rng.standard_normal((4, 8), np.float32) for key in beside if prefix}
    save_file(named, tmp_path / "a.safetensors")
    read = info(tmp_path / "a.safetensors")
    assert not read["unknown"] and len(read["ignored"]) == len(more) + (len(beside) if prefix else 0)
    assert read["family"] == name and read["components"].keys() == {"ltx2"}
    assert all(read["components"]["ltx2"][what] == [] for what in ("missing", "unused", "misshapen"))
    weights = open_checkpoint(tmp_path / "a.safetensors").components["ltx2"].weights
    for key, array in arrays.items():
        np.testing.assert_array_equal(weights[key].values(), array, key)


def test_a_folder(tmp_path, variant):
    name, arrays = variant
    theirs = NETWORK.folder.layout.of_size(SIZES[name]).write({key: stored(a) for key, a in arrays.items()})
    assert "transformer_blocks.1.video_to_audio_attn.norm_k.weight" in theirs and "time_embed.linear.bias" in theirs
    place = tmp_path / "transformer"
    place.mkdir()
    save_file({key: np.asarray(w.values()) for key, w in theirs.items()}, place / NETWORK.folder.file)
    (place / "config.json").write_text(json.dumps(NETWORK.folder.config(SIZES[name])))
    found = open_checkpoint(tmp_path).components["ltx2"]
    assert found.config["split"] is True and found.config["gate_scale"] == 1.0
    for key, array in arrays.items():
        np.testing.assert_array_equal(found.weights[key].values(), array, key)


def test_fields_that_no_shape_tells(tmp_path):
    def read(**given):
        return NETWORK.config(tmp_path / "config.json", small.shapes("ltx2", OLD), given)

    given = {"cross_attn_timestep_scale_multiplier": 500, "base_height": 1024, "pos_embed_max_pos": 10}
    found = read(**given, attention_head_dim=64, rope_type="split")
    assert (found["gate_scale"], found["extent"], found["head_dim"]) == (0.5, [10, 1024, 2048], 64)
    assert [read()["split"], read(norm_eps=1e-6)["split"], read(rope_type="split")["split"]] == [True, False, True]
    for wrong in ("half", 1, None, ["split"]):
        with pytest.raises(BadInput, match=r"rope_type is .*; split or interleaved expected"):
            read(rope_type=wrong)


@pytest.mark.parametrize("name", ["transformer_blocks.1.ff.net.2.weight", "audio_patchify_proj.weight"])
def test_a_tensor_of_another_shape_is_named(tmp_path, variant, name):
    save_file(variant[1] | {name: np.zeros((3, 5), np.float32)}, tmp_path / "a.safetensors")
    told = CliRunner().invoke(app, ["info", str(tmp_path / "a.safetensors")])
    assert told.exit_code == 2 and "misshapen" in told.output and name in told.output
