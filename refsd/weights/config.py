"""What the shapes do not tell: heads, groups, activations; from config.json, else as SD 1.5 has them."""

import math
from pathlib import Path
from typing import Any

from refsd.golden.errors import BadInput
from refsd.weights.architecture import CLIPSize, Shapes, UNetSize
from refsd.weights.architecture_controlnet import controlnet_size
from refsd.weights.architecture_mmdit import mmdit_size
from refsd.weights.config_fields import COMPUTED
from refsd.weights.sizes import clip_size, dim, unet_size, vae_size

# OpenCLIP's H and bigG have the GELU that OpenAI's CLIP replaced: they are wider, and deeper than its 12 layers.
OPENCLIP_WIDTHS = (1024, 1280)
OPENCLIP_LAYERS = (23, 24, 32)

TEXT = ("clip", "t5", "qwen3", "mistral")
INNER = ("text_config", "rope_parameters")  # fields in a field: of a model that sees, and since transformers 5


def component_config(component: str, path: Path, shapes: Shapes, config: dict[str, Any] | None) -> dict[str, Any]:
    """What a component's model needs besides its weights.

    shapes: of its tensors, under the original's names
    config: the content of config.json at `path`, or None
    Raises BadInput for a field that is no such thing, or that asks for what refsd does not compute.
    """
    given = config or {}
    kind = "clip" if component == "clip_g" else component
    for inner in INNER:
        if kind in TEXT and isinstance(given.get(inner), dict):
            given = given[inner] if inner == "text_config" else {**given, **given[inner]}
    for field, values in COMPUTED.get(kind, {}).items():
        found = given.get(field, values[0])
        if not any(type(found) is not dict and found == value for value in values):
            raise BadInput(f"{path}: {field} is {_shown(found)}; refsd computes {values[0]} only")
    return _READ[kind](path, shapes, given) if kind in _READ else {}


def _unet(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    return _heads(path, unet_size(shapes), given)


def _controlnet(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    return _heads(path, controlnet_size(shapes).unet, given)


def _mmdit(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    return {"head_dim": _divisor(path, given, "attention_head_dim", 64, mmdit_size(shapes).hidden)}


def _mistral(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    return {
        "head_dim": _divisor(
            path, given, "head_dim", 128, _rows(shapes, "model.layers.0.self_attn.q_proj.weight", 128)
        )
    }


def _heads(path: Path, size: UNetSize, given: dict[str, Any]) -> dict[str, Any]:
    if given:
        _check_crossing(path, given, size)
    # diffusers calls the number of heads attention_head_dim; num_attention_heads goes before it.
    field = "attention_head_dim" if given.get("num_attention_heads") is None else "num_attention_heads"
    heads = given.get(field)
    if given.get("use_linear_projection"):
        _check_heads_of_64(path, field, heads, [mult * size.channels for mult in size.channel_mult])
        given = {**given, field: 8}
    elif isinstance(heads, list) and heads and all(n == heads[0] for n in heads):
        given = {**given, field: heads[0]}
    heads_of = {"num_heads": _divisor(path, given, field, 8, size.channels)}
    return {
        **({"head_dim": 64} if size.linear else heads_of),
        "num_groups": _divisor(path, given, "norm_num_groups", 32, size.channels),
    }


def _check_crossing(path: Path, given: dict[str, Any], size: UNetSize) -> None:
    """Whose first attention looks at the text is told by its width; where both are as wide, it is not."""
    said = given.get("only_cross_attention", False)
    levels = range(len(size.channel_mult))
    crossing = said if isinstance(said, list) else [said] * len(levels)
    told = [level in size.cross_only for level in levels]
    if crossing != told:
        raise BadInput(f"{path}: only_cross_attention is {_shown(said)}; the shapes of attn1 say {told}")


def _check_heads_of_64(path: Path, field: str, heads: Any, channels: list[int]) -> None:
    """SD 2 and SDXL say how many heads each level has; all are 64 channels wide."""
    heads = heads if isinstance(heads, list) else [heads] * len(channels)
    if len(heads) != len(channels) or any(n != max(1, wide // 64) for n, wide in zip(heads, channels, strict=True)):
        raise BadInput(f"{path}: {field} is {_shown(heads)}; refsd computes heads of 64 channels only")


def _vae(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    """A bare file does not tell how its latents are scaled: its family does."""
    read: dict[str, Any] = {"num_groups": _divisor(path, given, "norm_num_groups", 32, vae_size(shapes).channels)}
    if given:
        scale, shift = given.get("scaling_factor", 0.18215), given.get("shift_factor") or 0
        if type(scale) not in (int, float) or not 0 < scale < 1e6 or not math.isfinite(scale):
            raise BadInput(f"{path}: scaling_factor is {_shown(scale)}; a positive number expected")
        if type(shift) not in (int, float) or not abs(shift) < 1e6:
            raise BadInput(f"{path}: shift_factor is {_shown(shift)}; a number expected")
        read |= {"scaling_factor": float(scale), "shift_factor": float(shift)}
    return read


def _flux2_vae(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    return {"num_groups": _divisor(path, given, "norm_num_groups", 32, _rows(shapes, "encoder.conv_in.weight", 32))}


def _clip(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    size = clip_size(shapes)
    return {
        "num_heads": _divisor(path, given, "num_attention_heads", max(1, size.hidden // 64), size.hidden),
        "hidden_act": given.get("hidden_act", clip_act(size)),
    }


def clip_act(size: CLIPSize) -> str:
    """The activation that a CLIP text encoder of this size has."""
    return "gelu" if size.hidden in OPENCLIP_WIDTHS or size.layers in OPENCLIP_LAYERS else "quick_gelu"


_READ = {
    "unet": _unet,
    "controlnet": _controlnet,
    "vae": _vae,
    "flux2-vae": _flux2_vae,
    "clip": _clip,
    "mmdit": _mmdit,
    "mistral": _mistral,
}


def _rows(shapes: Shapes, name: str, usual: int) -> int:
    """How many a tensor has; what is missing is told later, by name."""
    return dim(shapes, name, 0, usual)


def _divisor(path: Path, given: dict[str, Any], field: str, default: int, of: int) -> int:
    value = given.get(field, default)
    if type(value) is not int or value < 1 or of % value:
        raise BadInput(f"{path}: {field} is {_shown(value)}; a whole number that divides {of} channels expected")
    return value


def _shown(value) -> str:
    text = ascii(value) if not isinstance(value, list | dict) else f"a JSON {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."
