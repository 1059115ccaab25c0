"""Qwen-Image's published files at their real size: every tensor is known."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from refsd.numerics.errors import BadInput
from refsd.weights import open_checkpoint

LISTED = json.loads((Path(__file__).parents[2] / "fixtures" / "published_qwen.json").read_text())
TEXT, EDIT_2511 = "text_encoders.qwen25_7b.transformer.", {"__index_timestep_zero__": [0]}
BOTH = {"qwen2_5_vl", "qwen2_5_vision"}
# file -> family, (what is listed, prefix), other tensors, components
FILES = {
    "transformer/ of Qwen-Image, Edit and 2509; ComfyUI's and city96's files": (
        *("qwen-image", [("transformer", "")], {}, {"qwen-image"}),
    ),
    "ComfyUI's Edit 2511": (
        *("qwen-image-edit-2511", [("transformer", "model.diffusion_model.")], EDIT_2511, {"qwen-image"}),
    ),
    "transformer/ of Layered": (
        *("qwen-image-layered", [("layered transformer", "")], {}, {"qwen-image-layered"}),
    ),
    "vae/": ("parts", [("vae", "")], {}, {"wan-vae"}),
    "vae/ of Layered": ("parts", [("layered vae", "")], {}, {"wan-vae"}),
    "text_encoder/, qwen_2.5_vl_7b": ("parts", [("text encoder", "")], {}, BOTH),
    "text_encoder/ saved by transformers 5": ("parts", [("text encoder of transformers 5", "")], {}, BOTH),
    "Qwen2.5-VL-7B.gguf": ("parts", [("text encoder, GGUF", "")], {}, {"qwen2_5_vl"}),
    "mmproj.gguf": ("parts", [("vision tower, GGUF", "")], {}, {"qwen2_5_vision"}),
    "all in one file": (
        "qwen-image",
        [("transformer", "model.diffusion_model."), ("text encoder", TEXT), ("vae", "vae.")],
        {},
        {"qwen-image", "wan-vae", *BOTH},
    ),
}


def named(lists, more=()):
    """name -> shape, of lists with their prefixes"""
    there = {}
    for name, prefix in lists:
        for key, (shape, count) in LISTED[name].items():
            there |= {prefix + key.replace("#", str(i)): shape for i in range(max(1, count))}
    return there | dict(more)


def sparse(path, there):
    """A safetensors file in float16 that takes no place on the disk."""
    header, end = {}, 0
    for name, shape in there.items():
        begin, end = end, end + 2 * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        file.truncate(8 + len(head) + end)
    return path


@pytest.mark.parametrize("file", FILES)
def test_every_tensor_has_its_place(tmp_path, file):
    family, lists, more, components = FILES[file]
    prefix = lists[0][1]
    there = named(lists, {prefix + name: shape for name, shape in more.items()})
    checkpoint = open_checkpoint(sparse(tmp_path / "a.safetensors", there))
    assert checkpoint.family.name == family
    assert checkpoint.components.keys() == components
    read = {
        name
        for held in checkpoint.components.values()
        for one in held.weights.sources.values()
        for name in one.names
    }
    assert {name for name in there if name not in read} <= {
        "lm_head.weight",
        f"{TEXT}lm_head.weight",
        "output.weight",
    }


@pytest.mark.parametrize(
    ("lists", "gone"),
    [
        ("transformer", "transformer_blocks.59.attn.norm_added_k.weight"),
        ("layered transformer", "time_text_embed.addition_t_embedding.weight"),
        ("text encoder", "visual.blocks.31.attn.qkv.bias"),
        ("vision tower, GGUF", "v.blk.31.attn_k.weight"),
    ],
)
def test_one_tensor_too_few(tmp_path, lists, gone):
    """Without its second embedding Layered has the tensors of Qwen-Image."""
    there = named([(lists, "")])
    del there[gone]
    path = sparse(tmp_path / "a.safetensors", there)
    if gone.endswith("addition_t_embedding.weight"):
        assert open_checkpoint(path).family.name == "qwen-image"
        return
    with pytest.raises(BadInput, match="missing"):
        open_checkpoint(path)
