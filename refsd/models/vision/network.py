"""Encoders of pictures: CLIP's and SigLIP's vision towers, FLUX.1 Redux."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.networks.config import divisor, positive
from refsd.networks.dimensions import Shape, Shapes, bare, conv, count, dim, linear, norm, read_size
from refsd.networks.keymap import Keymap, prefix_rows
from refsd.networks.network import DIFFUSERS_FILE, TRANSFORMERS_FILE, Folder, Location, Network, fixed, same
from refsd.networks.recipe import alone


class VisionSize(NamedTuple):
    """Dimensions of a vision tower; the defaults are those of SigLIP so400m, patch 14, 384 pixels.

    tokens:     squares of a picture
    projection: rows of CLIP's visual_projection; 0: SigLIP, which has none, and no class token
    """

    hidden: int = 1152
    layers: int = 27
    mlp: int = 4304
    patch: int = 14
    tokens: int = 729
    projection: int = 0


SIGLIP_SO400M = VisionSize()
CLIP_VIT_L = VisionSize(hidden=1024, layers=24, mlp=4096, tokens=256, projection=768)
CLIP_VIT_H = VisionSize(hidden=1280, layers=32, mlp=5120, tokens=256, projection=1024)
_TOWER = "vision_model"
_PATCHES = f"{_TOWER}.embeddings.patch_embedding"
_POSITIONS = f"{_TOWER}.embeddings.position_embedding.weight"
_PROJECTION = "visual_projection.weight"
_CLASS = f"{_TOWER}.embeddings.class_embedding"


def vision_shapes(size: VisionSize) -> Shapes:
    """Return the shapes of all tensors. Source: transformers' CLIPVisionModelWithProjection, SiglipVisionModel."""
    d, is_clip = size.hidden, size.projection > 0
    shapes: Shapes = {_CLASS: (d,)} if is_clip else {}
    shapes |= conv(_PATCHES, 3, d, size.patch, bias=not is_clip)
    shapes |= {_POSITIONS: (size.tokens + is_clip, d)}
    shapes |= norm(f"{_TOWER}.pre_layrnorm", d) if is_clip else {}
    for i in range(size.layers):
        at = f"{_TOWER}.encoder.layers.{i}"
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            shapes |= linear(f"{at}.self_attn.{name}", d, d)
        shapes |= norm(f"{at}.layer_norm1", d)
        shapes |= linear(f"{at}.mlp.fc1", d, size.mlp) | linear(f"{at}.mlp.fc2", size.mlp, d)
        shapes |= norm(f"{at}.layer_norm2", d)
    shapes |= norm(f"{_TOWER}.post_layernorm", d)
    return shapes | bare("visual_projection", d, size.projection) if is_clip else shapes


def _size_like(shapes: Mapping[str, Shape], usual: VisionSize) -> VisionSize:
    """Infer the size from shapes; dimensions of missing tensors are the usual ones."""
    hidden = dim(shapes, f"{_PATCHES}.weight", 0, dim(shapes, f"{_TOWER}.post_layernorm.weight", 0, usual.hidden))
    is_clip = int(usual.projection > 0)
    return VisionSize(
        hidden=hidden,
        layers=count(shapes, f"{_TOWER}.encoder.layers.", usual.layers),
        mlp=dim(shapes, f"{_TOWER}.encoder.layers.0.mlp.fc1.weight", 0, usual.mlp),
        patch=dim(shapes, f"{_PATCHES}.weight", 2, usual.patch),
        tokens=dim(shapes, _POSITIONS, 0, usual.tokens + is_clip) - is_clip,
        projection=dim(shapes, _PROJECTION, 0, usual.projection) if is_clip else 0,
    )


def siglip_size(shapes: Mapping[str, Shape]) -> VisionSize:
    """Infer the size of SigLIP's tower; dimensions of missing tensors are so400m's."""
    return _size_like(shapes, SIGLIP_SO400M)


def clip_vision_size(shapes: Mapping[str, Shape]) -> VisionSize:
    """Infer the size of CLIP's tower; dimensions of missing tensors are ViT-H's."""
    return _size_like(shapes, CLIP_VIT_H)


def siglip_keymap() -> Keymap:
    """Map names to and from transformers' SiglipVisionModel of version 5, which drops `vision_model.`."""
    parts = ("embeddings", "encoder", "post_layernorm")
    return Keymap(prefix_rows((f"{_TOWER}.{part}", part) for part in parts))


# OpenAI's ViT-L has quick_gelu, OpenCLIP's ViT-H and bigG have gelu. Width -> width of a head, where it is not 64.
_OPENAI_WIDTHS = (768, 1024)
_HEAD_DIMS = {1152: 72, 1280: 80, 1664: 104}


def _heads(size: VisionSize) -> int:
    return max(1, size.hidden // _HEAD_DIMS.get(size.hidden, 64))


def _act(size: VisionSize) -> str:
    return "quick_gelu" if size.hidden in _OPENAI_WIDTHS else "gelu"


def _config(size: VisionSize) -> dict:
    return {
        "attention_dropout": 0.0,
        "hidden_size": size.hidden,
        "image_size": 384 if size == SIGLIP_SO400M else size.patch * math.isqrt(size.tokens),
        "intermediate_size": size.mlp,
        "num_attention_heads": _heads(size),
        "num_channels": 3,
        "num_hidden_layers": size.layers,
        "patch_size": size.patch,
    }


def _siglip_config(size: VisionSize) -> dict:
    return _config(size) | {
        "architectures": ["SiglipVisionModel"],
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-06,
        "model_type": "siglip_vision_model",
        "vision_use_head": False,
    }


def _clip_config(size: VisionSize) -> dict:
    return _config(size) | {
        "architectures": ["CLIPVisionModelWithProjection"],
        "hidden_act": _act(size),
        "layer_norm_eps": 1e-05,
        "model_type": "clip_vision_model",
        "projection_dim": size.projection,
    }


def _read_siglip(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    size = siglip_size(shapes)
    heads = divisor(path, given, "num_attention_heads", _heads(size), size.hidden)
    return {"num_heads": heads, "eps": positive(path, given, "layer_norm_eps", 1e-6)}


def _read_clip(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    size = clip_vision_size(shapes)
    heads = divisor(path, given, "num_attention_heads", _heads(size), size.hidden)
    eps = positive(path, given, "layer_norm_eps", 1e-5)
    return {"num_heads": heads, "hidden_act": given.get("hidden_act", _act(size)), "eps": eps}


class ReduxSize(NamedTuple):
    """Dimensions of Redux; the defaults are FLUX.1 Redux dev's: SigLIP's width and T5's."""

    hidden: int = 1152
    context_dim: int = 4096


REDUX_DEV = ReduxSize()


def redux_shapes(size: ReduxSize) -> Shapes:
    """Return the shapes of all tensors. Source: black-forest-labs/flux, modules/image_embedders.py."""
    wide = 3 * size.context_dim
    return linear("redux_up", size.hidden, wide) | linear("redux_down", wide, size.context_dim)


def redux_size(shapes: Mapping[str, Shape]) -> ReduxSize:
    """Infer the size from shapes. Dimensions of missing tensors are Redux dev's."""
    return read_size(REDUX_DEV, redux_shapes, shapes)


_TEXT = ("text_model.*", "logit_scale", "logit_bias", "text_projection.weight")  # of a model with both encoders
_HEAD = ("vision_model.head.*", "head.*")
_ENCODER = "image_encoder"

CLIP_VISION = Network(
    "clip-vision",
    "CLIP image encoder",
    "image encoder",
    clip_vision_size,
    vision_shapes,
    places=(Location(same("original"), ("image_encoder.", ""), (_CLASS,)),),
    folder=Folder(_ENCODER, TRANSFORMERS_FILE, same("transformers"), _clip_config),
    computed={"hidden_act": ("quick_gelu", "gelu")},
    config=_read_clip,
    nested=("vision_config",),
    unread=(*_TEXT, "vision_model.embeddings.position_ids"),
    usual=CLIP_VIT_H,
    recipes={
        "clip-vision-h": alone(
            "clip-vision", CLIP_VIT_H, VisionSize(64, 3, 96, patch=4, tokens=16, projection=24), "clip-vision"
        )
    },
)
SIGLIP = Network(
    "siglip",
    "SigLIP image encoder",
    "image encoder",
    siglip_size,
    vision_shapes,
    places=(
        Location(same("original"), ("image_encoder.", ""), (f"{_PATCHES}.",)),
        Location(fixed("transformers", siglip_keymap), ("image_encoder.", ""), ("embeddings.patch_embedding.",)),
    ),
    folder=Folder(_ENCODER, TRANSFORMERS_FILE, fixed("transformers", siglip_keymap), _siglip_config),
    computed={"hidden_act": ("gelu_pytorch_tanh",)},
    config=_read_siglip,
    nested=("vision_config",),
    unread=(*_TEXT, *_HEAD, "vision_model.embeddings.position_ids"),
    usual=SIGLIP_SO400M,
    recipes={"siglip": alone("siglip", SIGLIP_SO400M, VisionSize(64, 3, 96, patch=4, tokens=16), "siglip")},
)
REDUX = Network(
    "redux",
    "FLUX.1 Redux",
    "image encoder",
    redux_size,
    redux_shapes,
    places=(Location(same("original"), ("image_embedder.", ""), ("redux_up.", "redux_down.")),),
    folder=Folder(
        "image_embedder",
        DIFFUSERS_FILE,
        same("diffusers"),
        lambda size: {
            "_class_name": "ReduxImageEncoder",
            "redux_dim": size.hidden,
            "txt_in_features": size.context_dim,
        },
    ),
    usual=REDUX_DEV,
    recipes={"redux": alone("redux", REDUX_DEV, ReduxSize(64, 128), "redux")},
)
NETWORKS = (CLIP_VISION, SIGLIP, REDUX)
