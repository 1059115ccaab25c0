"""What the shapes do not tell: heads, groups, activations; from config.json, else as SD 1.5 has them."""

import math
from pathlib import Path
from typing import Any

from refsd.golden.errors import BadInput

# Fields of diffusers' and transformers' config.json, and the values that refsd computes.
# A field that is absent has the first.
COMPUTED: dict[str, dict[str, tuple]] = {
    "unet": {
        "act_fn": ("silu", "swish"),
        "flip_sin_to_cos": (True,),
        "freq_shift": (0,),
        "center_input_sample": (False,),
        "norm_eps": (1e-5,),
        "time_embedding_type": ("positional",),
        "time_embedding_act_fn": (None,),
        "timestep_post_act": (None,),
        "time_cond_proj_dim": (None,),
        "class_embed_type": (None,),
        "addition_embed_type": (None,),
        "encoder_hid_dim_type": (None,),
        "use_linear_projection": (False,),
        "transformer_layers_per_block": (1,),
        "resnet_time_scale_shift": ("default",),
        "resnet_skip_time_act": (False,),
        "resnet_out_scale_factor": (1,),
        "mid_block_type": ("UNetMidBlock2DCrossAttn",),
        "mid_block_scale_factor": (1,),
        "downsample_padding": (1,),
        "only_cross_attention": (False,),
        "dual_cross_attention": (False,),
        "cross_attention_norm": (None,),
        "attention_type": ("default",),
        "conv_in_kernel": (3,),
        "conv_out_kernel": (3,),
    },
    "vae": {
        "act_fn": ("silu", "swish"),
        "mid_block_add_attention": (True,),
        "use_quant_conv": (True,),
        "use_post_quant_conv": (True,),
        "latents_mean": (None,),
        "latents_std": (None,),
        "shift_factor": (None, 0),
    },
    "clip": {"layer_norm_eps": (1e-5,), "hidden_act": ("quick_gelu",)},
}


def component_config(component: str, path: Path, channels: int, config: dict[str, Any] | None) -> dict[str, Any]:
    """What a component's model needs besides its weights.

    channels: what heads (CLIP: hidden) and groups must divide
    config:   the content of config.json at `path`, or None
    Raises BadInput for a field that is no such thing, or that asks for what refsd does not compute.
    """
    given = config or {}
    if component == "clip" and isinstance(given.get("text_config"), dict):
        given = given["text_config"]
    for field, values in COMPUTED[component].items():
        found = given.get(field, values[0])
        if not any(type(found) is not dict and found == value for value in values):
            raise BadInput(f"{path}: {field} is {_shown(found)}; refsd computes {values[0]} only")
    return _READ[component](path, channels, given)


def _unet(path: Path, channels: int, given: dict[str, Any]) -> dict[str, Any]:
    # diffusers calls the number of heads attention_head_dim; num_attention_heads goes before it.
    field = "attention_head_dim" if given.get("num_attention_heads") is None else "num_attention_heads"
    heads = given.get(field)
    if isinstance(heads, list) and heads and all(n == heads[0] for n in heads):
        given = {**given, field: heads[0]}
    return {
        "num_heads": _divisor(path, given, field, 8, channels),
        "num_groups": _divisor(path, given, "norm_num_groups", 32, channels),
    }


def _vae(path: Path, channels: int, given: dict[str, Any]) -> dict[str, Any]:
    scale = given.get("scaling_factor", 0.18215)
    if type(scale) not in (int, float) or not 0 < scale < 1e6 or not math.isfinite(scale):
        raise BadInput(f"{path}: scaling_factor is {_shown(scale)}; a positive number expected")
    return {
        "num_groups": _divisor(path, given, "norm_num_groups", 32, channels),
        "scaling_factor": float(scale),
    }


def _clip(path: Path, channels: int, given: dict[str, Any]) -> dict[str, Any]:
    return {
        "num_heads": _divisor(path, given, "num_attention_heads", max(1, channels // 64), channels),
        "hidden_act": given.get("hidden_act", "quick_gelu"),
    }


_READ = {"unet": _unet, "vae": _vae, "clip": _clip}


def _divisor(path: Path, given: dict[str, Any], field: str, default: int, of: int) -> int:
    value = given.get(field, default)
    if type(value) is not int or value < 1 or of % value:
        raise BadInput(f"{path}: {field} is {_shown(value)}; a whole number that divides {of} channels expected")
    return value


def _shown(value) -> str:
    text = ascii(value) if not isinstance(value, list | dict) else f"a JSON {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."
