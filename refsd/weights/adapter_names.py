"""What adapter files call a layer, and the parts of its adapter: tables.

A name is a module's and a part's: "lora_unet_mid_block_attentions_0_proj_in" + ".lora_up.weight".
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from refsd.weights import keymaps
from refsd.weights.architecture import CLIPSize, UNetSize, clip_shapes, unet_shapes


class Target(NamedTuple):
    """A layer of the original checkpoint: "unet", "input_blocks.1.1.proj_in"."""

    component: str
    key: str


# What a name ends in -> the part. The longest match counts.
PARTS: dict[str, str] = {
    # kohya, LyCORIS
    ".lora_down.weight": "down",
    ".lora_up.weight": "up",
    ".lora_mid.weight": "mid",
    ".alpha": "alpha",
    ".dora_scale": "dora_scale",
    ".a1.weight": "a1",
    ".a2.weight": "a2",
    ".b1.weight": "b1",
    ".b2.weight": "b2",
    ".oft_blocks": "oft_blocks",
    ".rescale": "rescale",
    ".diff": "diff",
    ".diff_b": "diff_b",
    ".w_norm": "w_norm",
    ".b_norm": "b_norm",
    ".on_input": "on_input",
    ".weight": "weight",
    **{f".hada_{part}": f"hada_{part}" for part in ("w1_a", "w1_b", "w2_a", "w2_b", "t1", "t2")},
    **{f".lokr_{part}": f"lokr_{part}" for part in ("w1", "w1_a", "w1_b", "w2", "w2_a", "w2_b", "t2")},
    # PEFT, and diffusers on top of it
    ".lora_A.weight": "down",
    ".lora_B.weight": "up",
    ".lora_A.default.weight": "down",
    ".lora_B.default.weight": "up",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".lora_magnitude_vector.default.weight": "magnitude",
    ".oft_R.weight": "oft_r",
    ".boft_R": "boft_r",
    ".boft_s": "boft_s",
    ".ia3_l": "ia3_l",
    # diffusers before PEFT
    ".lora.down.weight": "down",
    ".lora.up.weight": "up",
    ".lora_linear_layer.down.weight": "down",
    ".lora_linear_layer.up.weight": "up",
}
_LONGEST_FIRST = sorted(PARTS, key=len, reverse=True)

# diffusers' attention processors: "attn1.processor.to_out_lora.down.weight" is of attn1.to_out.0.
_PROCESSOR = re.compile(r"(.*)\.processor\.(to_[qkv]|to_out)_lora\.(down|up)\.weight")


def split(name: str) -> tuple[str, str] | None:
    """A name in the file -> its module and its part; None where no table knows it."""
    processor = _PROCESSOR.fullmatch(name)
    if processor:
        module, layer, part = processor.groups()
        return f"{module}.{layer}" + (".0" if layer == "to_out" else ""), part
    end = next((end for end in _LONGEST_FIRST if name.endswith(end)), None)
    return None if end is None else (name.removesuffix(end), PARTS[end])


class Naming(NamedTuple):
    """Modules are called `prefix` and their name in a layout, its dots as `dot`."""

    prefix: str
    layout: str
    dot: str


NAMINGS: dict[str, tuple[Naming, ...]] = {
    "unet": (
        Naming("lora_unet_", "diffusers", "_"),
        Naming("lora_unet_", "original", "_"),
        Naming("lycoris_", "diffusers", "_"),
        Naming("lycoris_", "original", "_"),
        Naming("unet.", "diffusers", "."),
        Naming("base_model.model.", "diffusers", "."),
        Naming("base_model.model.unet.", "diffusers", "."),
        Naming("unet.base_model.model.", "diffusers", "."),
        Naming("", "diffusers", "."),
        Naming("diffusion_model.", "original", "."),
        Naming("model.diffusion_model.", "original", "."),
    ),
    "clip": (
        Naming("lora_te_", "original", "_"),
        Naming("lora_te1_", "original", "_"),
        Naming("lycoris_", "original", "_"),
        Naming("text_encoder.", "original", "."),
        Naming("text_encoder.", "headless", "."),
        Naming("base_model.model.", "original", "."),
        Naming("base_model.model.", "headless", "."),
        Naming("text_encoder.base_model.model.", "original", "."),
        Naming("text_encoders.clip_l.transformer.", "original", "."),
        Naming("cond_stage_model.transformer.", "original", "."),
    ),
}

Layout = Callable[[str], str | None]


def _theirs(keymap: keymaps.Keymap) -> Layout:
    def name(key: str) -> str | None:
        source = keymap.theirs(key)
        return source.names[0] if source is not None and len(source.names) == 1 else None

    return name


# Looked up, not multiplied: no adapter of theirs is read.
_TABLES = ("token_embedding", "position_embedding")
# component -> its keys where a checkpoint has none, and its layouts, by its size.
_USUAL = {"unet": lambda: unet_shapes(UNetSize()), "clip": lambda: clip_shapes(CLIPSize())}


def _layouts(component: str, size) -> dict[str, Layout]:
    found: dict[str, Layout] = {"original": lambda key: key}
    if component == "unet":
        found["diffusers"] = _theirs(keymaps.unet(len(size.channel_mult), size.res_blocks, size.attention))
    else:
        found["headless"] = lambda key: key.removeprefix("text_model.")
    return found


def aliases(sizes: Mapping[str, UNetSize | CLIPSize], keys: Mapping[str, Iterable[str]]) -> dict[str, Target]:
    """Everything that a file may call a layer -> the layer.

    sizes: component -> its size; one that is not there has SD 1.5's
    keys:  component -> names of its weights ("time_embed.0.weight", "time_embed.0.bias", ...)
    """
    found: dict[str, Target] = {}
    for component, namings in NAMINGS.items():
        size = sizes.get(component) or {"unet": UNetSize(), "clip": CLIPSize()}[component]
        layouts = _layouts(component, size)
        modules = dict.fromkeys(name.rpartition(".")[0] for name in keys.get(component) or _USUAL[component]())
        modules = [key for key in modules if not key.endswith(_TABLES)]
        for key in modules:
            for prefix, layout, dot in namings:
                name = layouts[layout](key)
                if name is not None:
                    found.setdefault(prefix + name.replace(".", dot), Target(component, key))
    return found
