"""Qwen3-VL's vision tower: sizes, tensors, names in files.

It lies beside the language model in transformers' and ComfyUI's files, and alone in llama.cpp's (mmproj).
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.models.language_model.network import LLM_PREFIXES
from refsd.models.qwen_vision.network import FLAT, FRAMES, tower_patch
from refsd.networks.config import divisor, shown_value
from refsd.networks.dimensions import Shape, Shapes, count, linear, norm, read_size
from refsd.networks.keymap import Keymap, Row, block_rows, prefix_rows
from refsd.networks.network import TRANSFORMERS_FILE, Folder, Layout, Location, Network, fixed
from refsd.networks.recipe import RecipeModel, RecipePart, alone
from refsd.numerics.errors import BadInput

_COLOURS, _FRAMES, _MERGED = 3, 2, 2  # of a patch; patches on a side of a token
_PATCHES, _POSITIONS, _STACK = "patch_embed.proj.weight", "pos_embed.weight", "deepstack_merger_list."


class Qwen3VisionSize(NamedTuple):
    """Dimensions of the tower; the defaults are the 8B's.

    out:       channels of the language model
    patch:     pixels on a side of a patch
    positions: learned positions, of a square
    mergers:   of DeepStack
    """

    hidden: int = 1152
    layers: int = 27
    mlp: int = 4304
    out: int = 4096
    patch: int = 16
    positions: int = 48 * 48
    mergers: int = 3


QWEN3_VISION_8B = Qwen3VisionSize()
QWEN3_VISION_4B = Qwen3VisionSize(1024, 24, 4096, 2560)
_TINY = Qwen3VisionSize(64, 5, 96, 128, 4, 25, 2)
# Blocks of the tower -> those whose outputs DeepStack takes, of the released models and of the tiny one.
_DEEPSTACK = {27: [8, 16, 24], 24: [5, 11, 17], _TINY.layers: [1, 3]}
_HEADS = 16


def qwen3_vision_shapes(size: Qwen3VisionSize) -> Shapes:
    """Return the shapes of all tensors, that of the patches flat. Source: transformers modeling_qwen3_vl.py."""
    d, merged = size.hidden, size.hidden * _MERGED**2
    shapes: Shapes = linear("patch_embed.proj", _COLOURS * _FRAMES * size.patch**2, d)
    shapes |= {_POSITIONS: (size.positions, d)}
    for i in range(size.layers):
        at = f"blocks.{i}"
        shapes |= norm(f"{at}.norm1", d) | norm(f"{at}.norm2", d)
        shapes |= linear(f"{at}.attn.qkv", d, 3 * d) | linear(f"{at}.attn.proj", d, d)
        shapes |= linear(f"{at}.mlp.linear_fc1", d, size.mlp) | linear(f"{at}.mlp.linear_fc2", size.mlp, d)
    for at, width in [("merger", d), *((f"{_STACK}{k}", merged) for k in range(size.mergers))]:
        shapes |= norm(f"{at}.norm", width)
        shapes |= linear(f"{at}.linear_fc1", merged, merged) | linear(f"{at}.linear_fc2", merged, size.out)
    return shapes


def qwen3_vision_size(shapes: Mapping[str, Shape]) -> Qwen3VisionSize:
    """Infer the size from shapes. Dimensions of missing tensors are the 8B's."""
    return read_size(
        QWEN3_VISION_8B,
        qwen3_vision_shapes,
        shapes,
        layers=count(shapes, "blocks.", QWEN3_VISION_8B.layers),
        patch=tower_patch(shapes, QWEN3_VISION_8B.patch),
        mergers=count(shapes, _STACK, QWEN3_VISION_8B.mergers),
    )


def qwen3_vision_keymap() -> Keymap:
    """Map names to and from transformers'."""
    return Keymap([Row(_PATCHES, (_PATCHES,), FLAT)], rest_same=True)


_GGUF_LAYER = (
    ("norm1", "ln1"),
    ("norm2", "ln2"),
    ("attn.qkv", "attn_qkv"),
    ("attn.proj", "attn_out"),
    ("mlp.linear_fc1", "ffn_up"),
    ("mlp.linear_fc2", "ffn_down"),
)
_GGUF_MERGER = (("norm", "norm"), ("linear_fc1", "fc1"), ("linear_fc2", "fc2"))
_GGUF_ENDS = (
    ("patch_embed.proj.bias", "v.patch_embd.bias"),
    (_POSITIONS, "v.position_embd.weight"),
    ("merger.norm", "v.post_ln"),
    ("merger.linear_fc1", "mm.0"),
    ("merger.linear_fc2", "mm.2"),
)
_GGUF_STACK = re.compile(r"v\.deepstack\.([0-9]{1,4})\.")


def qwen3_vision_gguf_keymap(layers: int, deepstack: Collection[int]) -> Keymap:
    """Map names to and from llama.cpp's mmproj, which numbers DeepStack's mergers by their blocks.

    Source: llama.cpp convert_hf_to_gguf.py, Qwen3VLVisionModel.
    """
    rows = [Row(_PATCHES, ("v.patch_embd.weight", "v.patch_embd.weight.1"), FRAMES)]
    rows += prefix_rows(_GGUF_ENDS) + block_rows(layers, "blocks", "v.blk", _GGUF_LAYER)
    for k, i in enumerate(sorted(deepstack)):
        rows += prefix_rows(_GGUF_MERGER, f"{_STACK}{k}.", f"v.deepstack.{i}.")
    return Keymap(rows)


def _of_names(names: Collection[str]) -> Keymap:
    stack = {int(found[1]) for found in map(_GGUF_STACK.match, names) if found}
    return qwen3_vision_gguf_keymap(count(names, "v.blk.", QWEN3_VISION_8B.layers), stack)


def _of_size(size: Qwen3VisionSize) -> Keymap:
    return qwen3_vision_gguf_keymap(size.layers, _DEEPSTACK.get(size.layers, range(size.mergers)))


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    """Read the number of heads and the blocks whose outputs DeepStack takes."""
    size = qwen3_vision_size(shapes)
    heads = divisor(path, given, "num_heads", _HEADS if size.hidden % _HEADS == 0 else 1, size.hidden)
    params: dict[str, Any] = {"num_heads": heads, "patch": size.patch}
    stack = given.get("deepstack_visual_indexes", _DEEPSTACK.get(size.layers))
    if stack is None:
        return params
    if not deepstack_fits(stack, size.mergers, size.layers):
        raise BadInput(
            f"{path}: deepstack_visual_indexes is {shown_value(stack)}; {size.mergers} numbers of blocks below "
            f"{size.layers} expected, in ascending order"
        )
    return {**params, "deepstack": stack}


def deepstack_fits(stack: object, mergers: int, layers: int) -> bool:
    """Return whether the numbers are those of `mergers` different blocks, in their order."""
    if type(stack) is not list or len(stack) != mergers or not all(type(i) is int for i in stack):
        return False
    return sorted({*stack}) == stack and stack[0] >= 0 and stack[-1] < layers


def _config(size: Qwen3VisionSize) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3VLVisionModel"],
        "model_type": "qwen3_vl_vision",
        "depth": size.layers,
        "hidden_size": size.hidden,
        "hidden_act": "gelu_pytorch_tanh",
        "intermediate_size": size.mlp,
        "num_heads": _HEADS if size.hidden % _HEADS == 0 else 1,
        "in_channels": _COLOURS,
        "patch_size": size.patch,
        "spatial_merge_size": _MERGED,
        "temporal_patch_size": _FRAMES,
        "out_hidden_size": size.out,
        "num_position_embeddings": size.positions,
        "deepstack_visual_indexes": _DEEPSTACK.get(size.layers, [*range(size.mergers)]),
    }


_TRANSFORMERS = fixed("transformers", qwen3_vision_keymap)
_GGUF = Layout("llama.cpp", _of_names, _of_size)
_PREFIXES = tuple(prefix + at for prefix in LLM_PREFIXES for at in ("model.visual.", "visual."))

QWEN3_VISION = Network(
    "qwen3_vision",
    "Qwen3-VL's vision tower",
    "image encoder",
    qwen3_vision_size,
    qwen3_vision_shapes,
    places=(
        Location(_TRANSFORMERS, _PREFIXES, (f"{_STACK}0.",)),
        Location(_TRANSFORMERS, ("",), (f"{_STACK}0.",)),
        Location(_GGUF, ("",), ("v.deepstack.",)),
    ),
    folder=Folder("image_encoder", TRANSFORMERS_FILE, _TRANSFORMERS, _config),
    computed={
        "hidden_act": ("gelu_pytorch_tanh",),
        "spatial_merge_size": (_MERGED,),
        "temporal_patch_size": (_FRAMES,),
    },
    config=_read_config,
    nested=("vision_config",),
    before=("qwen2_5_vision",),
    recipes={
        "qwen3-vl-8b-vision": alone("qwen3_vision", QWEN3_VISION_8B, _TINY, "clip"),
        "qwen3-vl-4b-mmproj": RecipeModel(
            {"qwen3_vision": RecipePart(QWEN3_VISION_4B, _TINY, keymap=_of_size)}, "clip"
        ),
    },
)
NETWORKS = (QWEN3_VISION,)
