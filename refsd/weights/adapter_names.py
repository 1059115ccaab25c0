"""What adapter files call a layer, and the parts of its adapter: tables.

A name is a module's and a part's: "lora_unet_mid_block_attentions_0_proj_in" + ".lora_up.weight".
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.weights import (
    keymaps,
    keymaps_chroma,
    keymaps_flux2,
    keymaps_mmdit,
    keymaps_sdxl,
    keymaps_zimage,
)
from refsd.weights.architecture import CLIP_G, CLIPSize, Shape, UNetSize, clip_shapes, unet_shapes
from refsd.weights.architecture_text import T5Size, t5_shapes


class Target(NamedTuple):
    """A layer of the original checkpoint: "unet", "input_blocks.1.1.proj_in"; or rows of it.

    What one layout keeps as q, k and v is one layer in another, and has a third of its rows each.

    first: of the rows
    count: how many, going on from the first row behind the last; None: all
    """

    component: str
    key: str
    first: int = 0
    count: int | None = None

    def rows(self, there: int) -> Any:
        """The rows in a layer that has so many, as an index of an array."""
        if self.count is None:
            return slice(None)
        end = self.first + self.count
        return slice(self.first, end) if end <= there else (self.first + np.arange(self.count)) % there


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
# XLabs' for FLUX.1: 1 is the picture's, 2 the text's.
_XLABS = re.compile(r"(double_blocks\.\d+)\.processor\.(qkv|proj)_lora([12])\.(down|up)\.weight")


def split(name: str) -> tuple[str, str] | None:
    """A name in the file -> its module and its part; None where no table knows it."""
    if processor := _PROCESSOR.fullmatch(name):
        module, layer, part = processor.groups()
        return f"{module}.{layer}" + (".0" if layer == "to_out" else ""), part
    if processor := _XLABS.fullmatch(name):
        module, layer, stream, part = processor.groups()
        return f"{module}.{'img' if stream == '1' else 'txt'}_attn.{layer}", part
    end = next((end for end in _LONGEST_FIRST if name.endswith(end)), None)
    return None if end is None else (name.removesuffix(end), PARTS[end])


class Naming(NamedTuple):
    """Modules are called `prefix` and their name in a layout, its dots as `dot`."""

    prefix: str
    layout: str
    dot: str


def _namings(layouts: tuple[str, ...], flat: tuple[str, ...], dotted: tuple[str, ...]) -> tuple[Naming, ...]:
    prefixes = [(prefix, "_") for prefix in flat] + [(prefix, ".") for prefix in dotted]
    return tuple(Naming(prefix, layout, dot) for prefix, dot in prefixes for layout in layouts)


_DENOISER = _namings(
    ("diffusers", "original"),
    ("lora_unet_", "lora_transformer_", "lycoris_"),
    (
        "",
        "unet.",
        "transformer.",
        "diffusion_model.",
        "model.diffusion_model.",
        "base_model.model.",
        "base_model.model.unet.",
        "base_model.model.transformer.",
        "unet.base_model.model.",
        "transformer.base_model.model.",
    ),
)
_ENCODER = ("original", "headless")

NAMINGS: dict[str, tuple[Naming, ...]] = {
    **dict.fromkeys(("unet", "flux", "chroma", "chroma-radiance", "flux2", "mmdit", "zimage"), _DENOISER),
    "clip": _namings(
        _ENCODER,
        ("lora_te_", "lora_te1_", "lycoris_"),
        (
            "text_encoder.",
            "base_model.model.",
            "text_encoder.base_model.model.",
            "text_encoders.clip_l.transformer.",
            "cond_stage_model.transformer.",
        ),
    ),
    "clip_g": _namings(_ENCODER, ("lora_te2_",), ("text_encoder_2.", "text_encoders.clip_g.transformer.")),
    "t5": _namings(
        ("original",),
        ("lora_te2_", "lora_te3_"),
        ("text_encoder_2.", "text_encoder_3.", "text_encoders.t5xxl.transformer."),
    ),
    "qwen3": _namings(
        _ENCODER, ("lora_te_", "lora_te1_"), ("text_encoder.", "text_encoders.qwen3_4b.transformer.")
    ),
    "mistral": _namings(_ENCODER, ("lora_te_", "lora_te1_"), ("text_encoder.",)),
}

_DENOISERS = tuple(component for component, namings in NAMINGS.items() if namings is _DENOISER)

# A layer's key and shape -> what a layout calls it, or the layers that it makes of its rows.
Layout = Callable[[str, Shape], Iterator[tuple[str, int, int | None]]]


def _theirs(keymap: keymaps.Keymap) -> Layout:
    def names(key: str, shape: Shape):
        source = keymap.theirs(key)
        if source is None:
            return
        if source.rule is keymaps.SWAP:
            yield source.names[0], shape[0] // 2, shape[0]
        elif len(source.names) == 1:
            yield source.names[0], 0, None
        else:  # q, k and v have as many rows as columns; a fourth takes the rest
            for i, name in enumerate(source.names):
                yield name, i * shape[1], shape[1] if i < 3 else shape[0] - 3 * shape[1]

    return names


def _original(key: str, _: Shape):
    yield key, 0, None


def _headless(key: str, _: Shape):
    yield key.removeprefix("text_model.").removeprefix("model."), 0, None


# Looked up, not multiplied: no adapter of theirs is read.
_TABLES = ("token_embedding", "position_embedding", "embed_tokens", "shared", "relative_attention_bias")
# Text encoders, and what a checkpoint without a denoiser is taken for: an adapter may name layers that it lacks.
_USUAL: dict[str, tuple[Any, Callable[[Any], Mapping[str, Shape]]]] = {
    "unet": (UNetSize(), unet_shapes),
    "clip": (CLIPSize(), clip_shapes),
    "clip_g": (CLIP_G, clip_shapes),
    "t5": (T5Size(), t5_shapes),
}
_DIFFUSERS: dict[str, Callable[[Any], keymaps.Keymap]] = {
    "unet": lambda size: keymaps_sdxl.unet(len(size.channel_mult), size.res_blocks, size.attention),
    "flux": lambda size: keymaps.flux(size.double_blocks, size.single_blocks),
    "chroma": lambda size: keymaps_chroma.chroma(size.double_blocks, size.single_blocks, size.layers),
    "flux2": lambda size: keymaps_flux2.flux2(size.double_blocks, size.single_blocks),
    "mmdit": lambda size: keymaps_mmdit.mmdit(size.blocks),
    "zimage": lambda size: keymaps_zimage.zimage(size.layers, size.noise_refiners),
}


def _layouts(component: str, size: Any) -> dict[str, Layout]:
    found: dict[str, Layout] = {"original": _original, "headless": _headless}
    if component in _DIFFUSERS:
        found["diffusers"] = _theirs(_DIFFUSERS[component](size))
    return found


def aliases(sizes: Mapping[str, Any], shapes: Mapping[str, Mapping[str, Shape]]) -> dict[str, Target]:
    """Everything that a file may call a layer -> the layer.

    sizes:  component -> its size
    shapes: component -> name -> shape of its weights ("time_embed.0.weight", "time_embed.0.bias", ...)
    """
    denoiser = any(component in shapes for component in _DENOISERS)
    found: dict[str, Target] = {}
    for component, namings in NAMINGS.items():
        if component in shapes:
            size, there = sizes[component], shapes[component]
        elif component in _USUAL and not (component == "unet" and denoiser):
            size = _USUAL[component][0]
            there = _USUAL[component][1](size)
        else:
            continue
        layouts = _layouts(component, size)
        modules: dict[str, Shape] = {}
        for name, shape in there.items():
            key, _, leaf = name.rpartition(".")
            if leaf == "weight" or key not in modules:
                modules[key] = shape
        for key, shape in modules.items():
            if key.endswith(_TABLES):
                continue
            for prefix, layout, dot in namings:
                for name, first, count in layouts[layout](key, shape) if layout in layouts else ():
                    found.setdefault(prefix + name.replace(".", dot), Target(component, key, first, count))
    return found
