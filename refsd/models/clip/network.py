"""CLIP's text encoders: OpenAI's CLIP-L, OpenCLIP's H and bigG."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from refsd.models.clip.openclip_names import OpenCLIP
from refsd.networks.config import divisor, positive
from refsd.networks.dimensions import Shape, Shapes, bare, count, dim, linear, norm
from refsd.networks.keymap import Keymap, prefix_rows
from refsd.networks.naming import ENCODER_LAYOUTS, namings
from refsd.networks.network import TRANSFORMERS_FILE, Folder, Location, Network, counted, fixed
from refsd.networks.recipe import alone


class CLIPSize(NamedTuple):
    """Dimensions of a CLIP text encoder; the defaults are CLIP-L's.

    projection: rows of text_projection; 0: there is none
    """

    hidden: int = 768
    layers: int = 12
    mlp: int = 3072
    vocab: int = 49408
    positions: int = 77
    projection: int = 0


CLIP_L = CLIPSize()
CLIP_L_PROJECTED = CLIPSize(projection=768)
CLIP_H = CLIPSize(hidden=1024, layers=24, mlp=4096, projection=1024)
CLIP_H_23 = CLIP_H._replace(layers=23, projection=0)
CLIP_G = CLIPSize(hidden=1280, layers=32, mlp=5120, projection=1280)


def clip_shapes(size: CLIPSize) -> Shapes:
    """Return the shapes of all tensors. Source: transformers' CLIPTextModel, or CLIPTextModelWithProjection."""
    d = size.hidden
    shapes: Shapes = {
        "text_model.embeddings.token_embedding.weight": (size.vocab, d),
        "text_model.embeddings.position_embedding.weight": (size.positions, d),
    }
    for i in range(size.layers):
        at = f"text_model.encoder.layers.{i}"
        for name in ("k_proj", "v_proj", "q_proj", "out_proj"):
            shapes |= linear(f"{at}.self_attn.{name}", d, d)
        shapes |= norm(f"{at}.layer_norm1", d)
        shapes |= linear(f"{at}.mlp.fc1", d, size.mlp) | linear(f"{at}.mlp.fc2", size.mlp, d)
        shapes |= norm(f"{at}.layer_norm2", d)
    shapes |= norm("text_model.final_layer_norm", d)
    return shapes | bare("text_projection", d, size.projection) if size.projection else shapes


def clip_size(shapes: Mapping[str, Shape]) -> CLIPSize:
    """Infer the size from shapes under the original's names. Dimensions of missing tensors are CLIP-L's."""
    usual = CLIPSize()
    tokens = "text_model.embeddings.token_embedding.weight"
    positions = "text_model.embeddings.position_embedding.weight"
    hidden = dim(shapes, tokens, 1, dim(shapes, "text_model.final_layer_norm.weight", 0, usual.hidden))
    return CLIPSize(
        hidden=hidden,
        layers=count(shapes, "text_model.encoder.layers.", usual.layers),
        mlp=dim(shapes, "text_model.encoder.layers.0.mlp.fc1.weight", 0, 4 * hidden),
        vocab=dim(shapes, tokens, 0, usual.vocab),
        positions=dim(shapes, positions, 0, usual.positions),
        projection=dim(shapes, "text_projection.weight", 0, 0),
    )


_HEADLESS = (
    ("text_model.embeddings", "embeddings"),
    ("text_model.encoder", "encoder"),
    ("text_model.final_layer_norm", "final_layer_norm"),
)


def clip_keymap() -> Keymap:
    """Map names to and from transformers' CLIPTextModel, and text_projection; version 5 drops `text_model.`."""
    same = ["text_projection", *(ours for ours, _ in _HEADLESS)]
    return Keymap(prefix_rows((name, name) for name in same) + prefix_rows(_HEADLESS))


def clip_config(size: CLIPSize, architecture: str = "CLIPTextModel") -> dict:
    """Return transformers' config.json for CLIP-L, OpenCLIP H or bigG, which differ in their GELU."""
    return {
        "architectures": [architecture],
        "attention_dropout": 0.0,
        "bos_token_id": 49406,
        "eos_token_id": 49407,
        "hidden_act": clip_act(size),
        "hidden_size": size.hidden,
        "initializer_factor": 1.0,
        "initializer_range": 0.02,
        "intermediate_size": size.mlp,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": size.positions,
        "model_type": "clip_text_model",
        "num_attention_heads": max(1, size.hidden // 64),
        "num_hidden_layers": size.layers,
        "pad_token_id": 49407,
        "projection_dim": size.projection or size.hidden,
        "vocab_size": size.vocab,
    }


# OpenCLIP's H and bigG use GELU, OpenAI's CLIP-L its approximation quick_gelu. The widths and depths of H and bigG:
OPENCLIP_WIDTHS = (1024, 1280)
OPENCLIP_LAYERS = (23, 24, 32)


def clip_act(size: CLIPSize) -> str:
    """Return the activation of the released CLIP text encoder of this size: "gelu" or "quick_gelu"."""
    return "gelu" if size.hidden in OPENCLIP_WIDTHS or size.layers in OPENCLIP_LAYERS else "quick_gelu"


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    size = clip_size(shapes)
    return {
        "num_heads": divisor(path, given, "num_attention_heads", max(1, size.hidden // 64), size.hidden),
        "hidden_act": given.get("hidden_act", clip_act(size)),
        "eps": positive(path, given, "layer_norm_eps", 1e-5),
    }


_NAMES = ("text_model.", "embeddings.token_embedding.", "encoder.layers.0.self_attn.")
_OPENCLIP_NAMES = ("transformer.resblocks.", "token_embedding.", "ln_final.")
_OPENCLIP = counted("ldm", OpenCLIP, {"transformer.resblocks.": 24}, lambda size: (size.layers,))
_TRANSFORMERS = fixed("diffusers", clip_keymap)
_COMPUTED = {"hidden_act": ("quick_gelu", "gelu")}

_BESIDE_TEXT = ("logit_scale", "vision_model.*", "visual.*")  # of a CLIP with both encoders

# weights/detect.py renames a CLIP found here to `clip_g` if it has the width or depth of bigG.
# As deep as OpenCLIP's H: the depth identifies the encoder.
_TINY_H = CLIPSize(hidden=128, layers=24, mlp=128, vocab=1000, projection=64)

CLIP = Network(
    "clip",
    "CLIP text encoder",
    "text encoder",
    clip_size,
    clip_shapes,
    places=(
        Location(
            fixed("ldm", clip_keymap),
            (
                "cond_stage_model.transformer.",
                "cond_stage_model.1.transformer.",
                "conditioner.embedders.0.transformer.",
                "text_encoders.clip_l.transformer.",
                "text_encoders.clip_g.transformer.",
                "text_encoders.clip_h.transformer.",
            ),
            _NAMES,
        ),
        Location(
            _OPENCLIP,
            ("cond_stage_model.model.", "conditioner.embedders.0.model.", "conditioner.embedders.1.model."),
            _OPENCLIP_NAMES,
        ),
        Location(_TRANSFORMERS, ("text_encoder.", "text_encoder_2.", ""), _NAMES),
        Location(_OPENCLIP, ("",), _OPENCLIP_NAMES),
    ),
    folder=Folder(
        "text_encoder",
        TRANSFORMERS_FILE,
        _TRANSFORMERS,
        lambda size: clip_config(size, "CLIPTextModel"),
        drops=("text_projection.",),
    ),
    computed=_COMPUTED,
    config=_read_config,
    nested=("text_config", "rope_parameters"),
    unread=("text_projection.weight", *_BESIDE_TEXT),
    adapters=namings(
        ENCODER_LAYOUTS,
        ("lora_te_", "lora_te1_", "lycoris_"),
        (
            "text_encoder.",
            "base_model.model.",
            "text_encoder.base_model.model.",
            "text_encoders.clip_l.transformer.",
            "cond_stage_model.transformer.",
        ),
    ),
    usual=CLIP_L,
    recipes={
        "clip-l": alone("clip", CLIP_L, CLIPSize(hidden=128, layers=2, mlp=512, vocab=1000), "clip"),
        "clip-h": alone("clip", CLIP_H, _TINY_H, "clip"),
    },
)
CLIP_BIGG = Network(
    "clip_g",
    "OpenCLIP bigG text encoder",
    "text encoder",
    clip_size,
    clip_shapes,
    folder=Folder(
        "text_encoder_2",
        TRANSFORMERS_FILE,
        _TRANSFORMERS,
        lambda size: clip_config(size, "CLIPTextModelWithProjection"),
    ),
    computed=_COMPUTED,
    config=_read_config,
    nested=("text_config", "rope_parameters"),
    unread=_BESIDE_TEXT,
    adapters=namings(ENCODER_LAYOUTS, ("lora_te2_",), ("text_encoder_2.", "text_encoders.clip_g.transformer.")),
    usual=CLIP_G,
    recipes={"clip-g": alone("clip_g", CLIP_G, _TINY_H._replace(layers=32), "clip")},
)
NETWORKS = (CLIP, CLIP_BIGG)
