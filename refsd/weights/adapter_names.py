"""Tables of the names that adapter files use for a layer and for the parts of its adapter.

A tensor's name is a module's name plus a part's: "lora_unet_mid_block_attentions_0_proj_in" + ".lora_up.weight".
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any

from refsd.adapters import Target
from refsd.models.catalogue import DENOISERS, NETWORKS
from refsd.networks.dimensions import Shape
from refsd.networks.keymap import SWAP, Keymap
from refsd.networks.network import Rows

# Ending of a tensor's name -> part. The longest match counts.
PARTS: dict[str, str] = {
    # kohya, LyCORIS
    ".lora_down.weight": "down",
    ".lora_up.weight": "up",
    ".lora_mid.weight": "mid",
    ".alpha": "alpha",
    ".dora_scale": "dora_scale",
    ".scalar": "scalar",
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
    ".lora_B.bias": "up_bias",
    ".lora_A.default.weight": "down",
    ".lora_B.default.weight": "up",
    ".lora_B.default.bias": "up_bias",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
    ".lora_magnitude_vector.default.weight": "magnitude",
    ".oft_R.weight": "oft_r",
    ".oft_R.scaled_oft": "scaled_oft",  # OneTrainer's, on top of PEFT
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

# Textual inversions inside an adapter file: "bundle_emb.NAME.clip_l". A1111, Forge and OneTrainer read them.
_BUNDLED = "bundle_emb."

# diffusers' attention processors: "attn1.processor.to_out_lora.down.weight" belongs to attn1.to_out.0.
_PROCESSOR = re.compile(r"(.*)\.processor\.(to_[qkv]|to_out)_lora\.(down|up)\.weight")
# XLabs' names for FLUX.1: lora1 belongs to the img stream, lora2 to the txt stream.
_XLABS = re.compile(r"(double_blocks\.\d+)\.processor\.(qkv|proj)_lora([12])\.(down|up)\.weight")


def split(name: str) -> tuple[str, str] | None:
    """Split a tensor's name into module and part; None if it is in no table."""
    if processor := _PROCESSOR.fullmatch(name):
        module, layer, part = processor.groups()
        return f"{module}.{layer}" + (".0" if layer == "to_out" else ""), part
    if processor := _XLABS.fullmatch(name):
        module, layer, stream, part = processor.groups()
        return f"{module}.{'img' if stream == '1' else 'txt'}_attn.{layer}", part
    end = next((end for end in _LONGEST_FIRST if name.endswith(end)), None)
    return None if end is None else (name.removesuffix(end), PARTS[end])


def bundled_embedding(name: str) -> str | None:
    """Return the name of the textual inversion that a tensor of an adapter file belongs to; None if to none."""
    return name.removeprefix(_BUNDLED).rpartition(".")[0] if name.startswith(_BUNDLED) else None


# Networks for which adapters exist.
ADAPTED = tuple(network.name for network in NETWORKS.values() if network.adapters)

# (key, shape) of a layer's weight -> (name, first row, number of rows; None: all) for each layer of another layout.
Layout = Callable[[str, Shape], Iterable[tuple[str, int, int | None]]]


def _theirs(keymap: Keymap, rows: Rows) -> Layout:
    def names(key: str, shape: Shape):
        source = keymap.theirs(key)
        if source is None:
            return
        if source.rule is SWAP:
            yield source.names[0], shape[0] // 2, shape[0]
        elif len(source.names) == 1:
            yield source.names[0], 0, None
        else:
            n = len(source.names)
            parts = rows(f"{key}.weight", shape) or [shape[0] // n] * n
            for name, end, count in zip(source.names, accumulate(parts), parts, strict=True):
                yield name, end - count, count

    return names


# Embedding tables, and a convolution over frames; adapters on them are not supported.
_TABLES = (
    *("token_embedding", "position_embedding", "embed_tokens", "shared", "relative_attention_bias"),
    "patch_embedding",
)


def _layouts(component: str, size: Any) -> dict[str, Layout]:
    found: dict[str, Layout] = {
        "original": lambda key, _: [(key, 0, None)],
        "headless": lambda key, _: [(key.removeprefix("text_model.").removeprefix("model."), 0, None)],
    }
    network = NETWORKS[component]
    if network.kind == "denoiser" and network.folder is not None:
        found["diffusers"] = _theirs(network.folder.layout.of_size(size), network.folder.rows(size))
    named = {naming.layout for naming in network.adapters}
    for layout in (place.layout for place in network.places):
        if layout.name in named - found.keys():
            found[layout.name] = _theirs(layout.of_size(size), lambda name, shape: None)
    return found


def aliases(sizes: Mapping[str, Any], shapes: Mapping[str, Mapping[str, Shape]]) -> dict[str, Target]:
    """Map every name that an adapter file may use for a layer to that layer.

    sizes:  component -> its size
    shapes: component -> tensor name ("time_embed.0.weight", "time_embed.0.bias", ...) -> shape
    """
    denoiser = any(component in shapes for component in DENOISERS)
    found: dict[str, Target] = {}
    for component, network in NETWORKS.items():
        if component in shapes:
            size, there = sizes[component], shapes[component]
        elif network.usual is not None and not (network.kind == "denoiser" and denoiser):
            size, there = network.usual, network.shapes(network.usual)
        else:
            continue
        found = _aliases_of(component, size, tuple(there.items())) | found
    return found


@functools.lru_cache(64)  # of all networks, for the next adapter
def _aliases_of(component: str, size: Any, tensors: tuple[tuple[str, Shape], ...]) -> dict[str, Target]:
    layouts, modules, found = _layouts(component, size), dict[str, Shape](), dict[str, Target]()
    for name, shape in tensors:
        key, _, leaf = name.rpartition(".")
        if leaf == "weight" or key not in modules:
            modules[key] = shape
    for key, shape in modules.items():
        if key.endswith(_TABLES):
            continue
        for prefix, layout, dot in NETWORKS[component].adapters:
            for name, first, count in layouts[layout](key, shape) if layout in layouts else ():
                found.setdefault(prefix + name.replace(".", dot), Target(component, key, first, count))
    return found
