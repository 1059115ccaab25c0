"""refsd info on Qwen-Image's layouts: each variant, its autoencoder, its text encoder with the vision tower."""

import json

import numpy as np
import pytest
import small_families as small
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.cli import app
from refsd.models.catalogue import NETWORKS
from refsd.models.vae_wan.network import WanVAESize

SIZES = {component: size for parts in small.FAMILIES.values() for component, size in parts.items()}
MARK = {"__index_timestep_zero__": np.zeros(0, np.float32)}


def parts(*rows):
    """prefix, component and layout of each -> tensors"""
    made = {}
    for prefix, component, layout in rows:
        arrays = small.weights(component, SIZES[component])
        there = small.written(component, layout, SIZES[component], arrays)
        made |= {prefix + name: array for name, array in there.items()}
    return made


UNET, TEXT = "model.diffusion_model.", "text_encoders.qwen25_7b.transformer."
# tensors of a single file; family; component -> words of its line
FILES = {
    "Qwen-Image": (lambda: parts(("", "qwen-image", "original")), "qwen-image", {"qwen-image": "layers 2"}),
    "Edit 2511": (
        lambda: parts((UNET, "qwen-image", "original")) | {UNET + n: a for n, a in MARK.items()},
        "qwen-image-edit-2511",
        {"qwen-image": "zero cond t True"},
    ),
    "Layered": (
        *(lambda: parts(("", "qwen-image-layered", "original")), "qwen-image-layered"),
        {"qwen-image-layered": "additions 2"},
    ),
    "text encoder with its tower": (
        lambda: parts((TEXT, "qwen2_5_vl", "transformers"), (f"{TEXT}visual.", "qwen2_5_vision", "transformers")),
        "parts",
        {"qwen2_5_vl": "kv heads 1", "qwen2_5_vision": "patch 4"},
    ),
    "mmproj": (lambda: parts(("", "qwen2_5_vision", "llama.cpp")), "parts", {"qwen2_5_vision": "patch 4"}),
}


def info(path, *more):
    told = CliRunner().invoke(app, ["info", str(path), *more])
    return told.exit_code, told.output


@pytest.mark.parametrize("file", FILES)
def test_a_single_file(tmp_path, file):
    tensors, family, lines = FILES[file]
    save_file(tensors(), tmp_path / "a.safetensors")
    code, said = info(tmp_path / "a.safetensors")
    for component, words in lines.items():
        line = next(line for line in said.splitlines() if line.startswith(f"  {component} ") and words in line)
        assert "tensors" not in line
    read = json.loads(info(tmp_path / "a.safetensors", "--json")[1])
    assert code == 0 and read["family"] == family and read["components"].keys() == lines.keys()
    assert all(of["missing"] == of["unused"] == of["misshapen"] == [] for of in read["components"].values())


@pytest.mark.parametrize("zero_cond_t", [True, False])
def test_a_folder_s_config_says_what_no_tensor_does(tmp_path, zero_cond_t):
    network = NETWORKS["qwen-image"]
    place = tmp_path / "transformer"
    place.mkdir()
    save_file(parts(("", "qwen-image", "original")), place / network.folder.file)
    config = network.folder.config(SIZES["qwen-image"]) | {"zero_cond_t": zero_cond_t}
    (place / "config.json").write_text(json.dumps(config))
    code, said = info(tmp_path)
    assert code == 0 and f"zero cond t {zero_cond_t}" in said


def test_layered_s_autoencoder_has_a_fourth_channel(tmp_path):
    size = WanVAESize(8, (8, 16), 1, (True,), image_channels=4)
    save_file(small.weights("wan-vae", size), tmp_path / "a.safetensors")
    code, said = info(tmp_path / "a.safetensors")
    assert code == 0 and "image channels 4" in said
