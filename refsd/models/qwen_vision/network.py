"""Qwen2.5-VL's vision tower: sizes, tensors, names in files.

It lies beside the language model in transformers' and ComfyUI's files, and alone in llama.cpp's (mmproj).
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.networks.config import divisor, shown_value
from refsd.networks.dimensions import Shape, Shapes, count, dim, linear, read_size
from refsd.networks.keymap import CONCAT, Keymap, Row, Rule, block_rows, prefix_rows
from refsd.networks.network import Location, Network, counted, fixed
from refsd.networks.recipe import RecipeModel, RecipePart
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor, stored

_COLOURS, _FRAMES, _MERGED = 3, 2, 2  # of a patch; patches on a side of a token
_PATCHES = "patch_embed.proj.weight"


class QwenVisionSize(NamedTuple):
    """Dimensions of the tower; the defaults are the 7B's.

    out:   channels of the language model
    patch: pixels on a side of a patch
    """

    hidden: int = 1280
    layers: int = 32
    mlp: int = 3420
    out: int = 3584
    patch: int = 14


QWEN2_5_VISION = QwenVisionSize()
_HEADS, _WINDOW, _WHOLE = 16, 112, (7, 15, 23, 31)  # of the released models; a window in pixels


def qwen_vision_shapes(size: QwenVisionSize) -> Shapes:
    """Return the shapes of all tensors, that of the patches flat. Source: transformers modeling_qwen2_5_vl.py."""
    d, merged = size.hidden, size.hidden * _MERGED**2
    shapes: Shapes = {_PATCHES: (d, _COLOURS * _FRAMES * size.patch**2)}
    for i in range(size.layers):
        at = f"blocks.{i}"
        shapes |= {f"{at}.norm1.weight": (d,), f"{at}.norm2.weight": (d,)}
        shapes |= linear(f"{at}.attn.qkv", d, 3 * d) | linear(f"{at}.attn.proj", d, d)
        shapes |= linear(f"{at}.mlp.gate_proj", d, size.mlp) | linear(f"{at}.mlp.up_proj", d, size.mlp)
        shapes |= linear(f"{at}.mlp.down_proj", size.mlp, d)
    shapes |= {"merger.ln_q.weight": (d,)}
    return shapes | linear("merger.mlp.0", merged, merged) | linear("merger.mlp.2", merged, size.out)


def qwen_vision_size(shapes: Mapping[str, Shape]) -> QwenVisionSize:
    """Infer the size from shapes. Dimensions of missing tensors are the 7B's."""
    layers, patch = count(shapes, "blocks.", QWEN2_5_VISION.layers), tower_patch(shapes, QWEN2_5_VISION.patch)
    return read_size(QWEN2_5_VISION, qwen_vision_shapes, shapes, layers=layers, patch=patch)


def tower_patch(shapes: Mapping[str, Shape], usual: int) -> int:
    """Infer the pixels on a side of a patch."""
    pixels = dim(shapes, _PATCHES, 1, _COLOURS * _FRAMES * usual**2)
    return max(1, math.isqrt(pixels // (_COLOURS * _FRAMES)))


def _flat(tensor: StoredTensor) -> StoredTensor:
    if len(tensor.shape) == 2:
        return tensor
    values = tensor.values()
    return stored(np.ascontiguousarray(values.reshape(len(values), -1)))


def _flat_shape(shapes: Sequence[Shape]) -> Shape:
    """[D, 3, 2, patch, patch], or a [D, 3, patch, patch] for each frame -> [D, 6 * patch * patch]

    Another shape stays as it is, and is then refused.
    """
    around = (_COLOURS,) if len(shapes) == _FRAMES else (_COLOURS, _FRAMES)
    if any(shape[1:-2] != around for shape in shapes):
        return shapes[0]
    return (shapes[0][0], sum(math.prod(shape[1:]) for shape in shapes))


def _whole_patches(tensor: StoredTensor) -> np.ndarray:
    """[D, 6 * patch * patch] -> [D, 3, 2, patch, patch]"""
    values = tensor.values()
    side = math.isqrt(values.shape[1] // (_COLOURS * _FRAMES))
    return values.reshape(len(values), _COLOURS, _FRAMES, side, side)


def _joined_frames(parts: Sequence[StoredTensor]) -> StoredTensor:
    return _flat(stored(np.stack([part.values() for part in parts], axis=2)))


def _split_frames(tensor: StoredTensor, _: Sequence[int]) -> list[StoredTensor]:
    return [stored(np.ascontiguousarray(frame)) for frame in np.moveaxis(_whole_patches(tensor), 2, 0)]


# Our linear layer [D, 6 * patch * patch] is a convolution of two frames [D, 3, 2, patch, patch] in theirs.
FLAT = Rule(_flat_shape, lambda parts: _flat(parts[0]), lambda tensor, _: [stored(_whole_patches(tensor))])
# A GGUF has a convolution for each frame.
FRAMES = Rule(_flat_shape, _joined_frames, _split_frames)


def qwen_vision_keymap() -> Keymap:
    """Map names to and from transformers'."""
    return Keymap([Row(_PATCHES, (_PATCHES,), FLAT)], rest_same=True)


_GGUF_LAYER = (
    ("norm1", "ln1"),
    ("norm2", "ln2"),
    ("attn.qkv", ("attn_q", "attn_k", "attn_v"), CONCAT),
    ("attn.proj", "attn_out"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
)


def qwen_vision_gguf_keymap(layers: int = 32) -> Keymap:
    """Map names to and from llama.cpp's mmproj, which has q, k and v apart.

    Source: llama.cpp convert_hf_to_gguf.py, Qwen2VLVisionModel; ComfyUI-GGUF loader.py, CLIP_VISION_SD_MAP.
    """
    rows = [Row(_PATCHES, ("v.patch_embd.weight", "v.patch_embd.weight.1"), FRAMES)]
    rows += prefix_rows((("merger.ln_q", "v.post_ln"), ("merger.mlp", "mm")))
    return Keymap(rows + block_rows(layers, "blocks", "v.blk", _GGUF_LAYER))


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    """Read the number of heads, the blocks without windows, and a window's side, in tokens."""
    size = qwen_vision_size(shapes)
    whole, pixels = given.get("fullatt_block_indexes", [*_WHOLE]), given.get("window_size", _WINDOW)
    if not isinstance(whole, list) or not all(type(i) is int and i >= 0 for i in whole):
        raise BadInput(f"{path}: fullatt_block_indexes is {shown_value(whole)}; a list of blocks' numbers expected")
    side = _MERGED * size.patch
    if type(pixels) is not int or pixels < side:
        raise BadInput(f"{path}: window_size is {shown_value(pixels)}; {side} pixels or more expected")
    heads = divisor(path, given, "num_heads", _HEADS if size.hidden % _HEADS == 0 else 1, size.hidden)
    return {"num_heads": heads, "whole": whole, "window": pixels // side, "patch": size.patch}


_TRANSFORMERS = fixed("transformers", qwen_vision_keymap)
_GGUF = counted("llama.cpp", qwen_vision_gguf_keymap, {"v.blk.": 32}, lambda size: (size.layers,))
_PREFIXES = ("text_encoders.qwen25_7b.transformer.", "text_encoders.llm.", "text_encoder.", "model.", "")
_TINY = QwenVisionSize(64, 2, 48, 512)

QWEN_VISION = Network(
    "qwen2_5_vision",
    "Qwen2.5-VL's vision tower",
    "image encoder",
    qwen_vision_size,
    qwen_vision_shapes,
    places=(
        Location(_TRANSFORMERS, tuple(f"{prefix}visual." for prefix in _PREFIXES), ("merger.ln_q.",)),
        Location(_TRANSFORMERS, ("",), ("merger.ln_q.",)),
        Location(_GGUF, ("",), ("v.patch_embd.weight.1",)),
    ),
    computed={"hidden_act": ("silu",), "spatial_merge_size": (2,), "temporal_patch_size": (2,)},
    config=_read_config,
    nested=("vision_config",),
    recipes={
        "qwen2.5-vl-mmproj": RecipeModel(
            {
                "qwen2_5_vision": RecipePart(
                    QWEN2_5_VISION, _TINY, keymap=lambda size: qwen_vision_gguf_keymap(size.layers)
                )
            },
            "clip",
        )
    },
)
NETWORKS = (QWEN_VISION,)
