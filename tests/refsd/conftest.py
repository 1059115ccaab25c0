"""Small checkpoints of every layout, and the judge of models."""

import json

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import save_file

from refsd.judges.model import ModelJudge
from refsd.models.clip.network import CLIPSize, clip_keymap, clip_shapes
from refsd.models.unet.network import unet_keymap
from refsd.models.unet.tensors import UNetSize, unet_shapes
from refsd.models.vae.network import VAESize, vae_keymap, vae_shapes
from refsd.numerics.tensor import stored
from refsd.weights import recipes

PREFIXES = {"unet": "model.diffusion_model.", "vae": "first_stage_model.", "clip": "cond_stage_model.transformer."}


@pytest.fixture(scope="session")
def parts():
    """component -> name -> array: two levels, few channels."""
    shapes = {
        "unet": unet_shapes(UNetSize(32, (32, 64), (0,), 1, 24)),
        "vae": vae_shapes(VAESize(32, (32, 64), 1)),
        "clip": clip_shapes(CLIPSize(hidden=64, layers=2, mlp=96, vocab=50, positions=9)),
    }
    rng = np.random.default_rng(0)
    return {
        part: {name: rng.standard_normal(shape, np.float32) for name, shape in of.items()}
        for part, of in shapes.items()
    }


@pytest.fixture
def single(parts):
    """The names of a single file -> arrays, with what real files have besides."""
    arrays = {PREFIXES[part] + name: array for part, of in parts.items() for name, array in of.items()}
    extras = {
        "alphas_cumprod": np.ones(3, np.float32),
        "model_ema.decay": np.ones(1, np.float32),
        "cond_stage_model.transformer.text_model.embeddings.position_ids": np.arange(9)[None],
    }
    return arrays | extras


@pytest.fixture
def single_file(single, tmp_path):
    save_file(single, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture
def prefixes():
    return PREFIXES


@pytest.fixture
def as_gguf(tmp_path):
    return lambda arrays: write_gguf(tmp_path / "a.gguf", arrays)


@pytest.fixture
def as_safetensors(tmp_path):
    def save(arrays):
        save_file(arrays, tmp_path / "a.safetensors")
        return tmp_path / "a.safetensors"

    return save


def write_gguf(path, arrays):
    writer = GGUFWriter(path, "test")
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_folder(path, parts, configs):
    maps = {"unet": unet_keymap(2, 1, (0,)), "vae": vae_keymap(2, 1), "clip": clip_keymap()}
    files = {
        "unet": ("unet", "diffusion_pytorch_model.fp16.safetensors"),
        "vae": ("vae", "diffusion_pytorch_model.safetensors"),
        "clip": ("text_encoder", "model.safetensors"),
    }
    for part, (folder, file) in files.items():
        (path / folder).mkdir(parents=True)
        theirs = maps[part].write({name: stored(array) for name, array in parts[part].items()})
        save_file({name: np.ascontiguousarray(t.data) for name, t in theirs.items()}, path / folder / file)
        (path / folder / "config.json").write_text(json.dumps(configs[part]))
    (path / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline"}))
    return path


CONFIGS = {
    "unet": {"attention_head_dim": [4, 4], "norm_num_groups": 16, "act_fn": "silu", "norm_eps": 1e-05},
    "vae": {"norm_num_groups": 8, "scaling_factor": 0.5, "shift_factor": None},
    "clip": {"num_attention_heads": 2, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-05},
}


@pytest.fixture
def folder(parts, tmp_path):
    return write_folder(tmp_path / "pipeline", parts, CONFIGS)


@pytest.fixture(scope="module")
def kind(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    def give(model, layout):
        path = folder / f"{model.family}-{model.type}-{model.quiet}.safetensors"
        return path if path.exists() else recipes.make(model, path, layout)

    return ModelJudge(give)
