"""Ideogram 4's transformer: sizes, tensors, names in files.

Names are Ideogram's own, where one matrix makes queries, keys and values; ComfyUI's files and GGUFs have them too.
diffusers splits that matrix. Source of Ideogram's names: diffusers loaders/lora_conversion_utils.py,
_convert_non_diffusers_ideogram4_lora_to_diffusers.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from refsd.models.ideogram4 import UNCONDITIONAL
from refsd.networks.config import positive, rotary_axes
from refsd.networks.dimensions import Shape, Shapes, bare, blocks, linear, read_size
from refsd.networks.keymap import CONCAT, Keymap, block_rows, same_names
from refsd.networks.naming import denoiser_namings
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, Folder, Layout, Location, Network, counted


class Ideogram4Size(NamedTuple):
    """Dimensions of the transformer; the defaults are Ideogram 4's.

    channels:    of the packed latent, whose pixels are tokens
    knobs:       channels of the time's vector that modulates the blocks
    context_dim: channels of Qwen3-VL's thirteen hidden states
    """

    hidden: int = 4608
    layers: int = 34
    head_dim: int = 256
    mlp: int = 12288
    channels: int = 128
    knobs: int = 512
    context_dim: int = 53248


IDEOGRAM4 = Ideogram4Size()
_AROUND = ("input_proj.weight", "llm_cond_proj.weight", "adaln_proj.weight", "final_layer.linear.weight")


def ideogram4_shapes(size: Ideogram4Size) -> Shapes:
    """Return the shapes of all tensors. Source: diffusers transformer_ideogram4.py."""
    D = size.hidden
    shapes = linear("input_proj", size.channels, D) | {"llm_cond_norm.weight": (size.context_dim,)}
    shapes |= linear("llm_cond_proj", size.context_dim, D)
    shapes |= linear("t_embedding.mlp_in", D, D) | linear("t_embedding.mlp_out", D, D)
    shapes |= linear("adaln_proj", D, size.knobs) | {"embed_image_indicator.weight": (2, D)}
    for i in range(size.layers):
        at = f"layers.{i}"
        shapes |= bare(f"{at}.attention.qkv", D, 3 * D) | bare(f"{at}.attention.o", D, D)
        shapes |= {f"{at}.attention.norm_{which}.weight": (size.head_dim,) for which in "qk"}
        for name, inputs, outputs in (("w1", D, size.mlp), ("w2", size.mlp, D), ("w3", D, size.mlp)):
            shapes |= bare(f"{at}.feed_forward.{name}", inputs, outputs)
        shapes |= {f"{at}.{half}_norm{n}.weight": (D,) for half in ("attention", "ffn") for n in (1, 2)}
        shapes |= linear(f"{at}.adaln_modulation", size.knobs, 4 * D)
    shapes |= linear("final_layer.adaln_modulation", size.knobs, D)
    return shapes | linear("final_layer.linear", D, size.channels)


def ideogram4_size(shapes: Mapping[str, Shape]) -> Ideogram4Size:
    """Infer the size from shapes. Dimensions of missing tensors are Ideogram 4's."""
    layers = blocks(shapes, "layers.", IDEOGRAM4.layers, _AROUND)
    return read_size(IDEOGRAM4, ideogram4_shapes, shapes, layers=layers)


_ATTENTION = (
    ("attention.qkv", ("attention.to_q", "attention.to_k", "attention.to_v"), CONCAT),
    ("attention.o", "attention.to_out.0"),
)


def ideogram4_keymap(layers: int = IDEOGRAM4.layers) -> Keymap:
    """Map Ideogram's names to and from diffusers'."""
    return Keymap(block_rows(layers, "layers", "layers", _ATTENTION), rest_same=True)


def _config(size: Ideogram4Size) -> dict[str, Any]:
    return {
        "_class_name": "Ideogram4Transformer2DModel",
        "in_channels": size.channels,
        "num_layers": size.layers,
        "attention_head_dim": size.head_dim,
        "num_attention_heads": size.hidden // size.head_dim,
        "intermediate_size": size.mlp,
        "adaln_dim": size.knobs,
        "llm_features_dim": size.context_dim,
        "rope_theta": 5000000,
        "mrope_section": [24, 20, 20],
        "norm_eps": 1e-05,
    }


_FOLDER = counted("diffusers", ideogram4_keymap, {"layers.": IDEOGRAM4.layers}, lambda size: (size.layers,))


def _any_names(names: Collection[str]) -> Keymap:
    return _FOLDER.of_names(names) if any(".attention.to_q." in name for name in names) else same_names(())


IDEOGRAM4_NETWORK = Network(
    "ideogram4",
    "Ideogram 4",
    "denoiser",
    ideogram4_size,
    ideogram4_shapes,
    places=(
        Location(
            Layout("original", _any_names, lambda size: same_names(())),
            (*DENOISER, "transformer."),
            ("embed_image_indicator.", "llm_cond_norm."),
        ),
    ),
    folder=Folder("transformer", DIFFUSERS_FILE, _FOLDER, _config),
    config=lambda path, shapes, given: {
        "sections": rotary_axes(path, given, "mrope_section", [24, 20, 20]),
        "theta": positive(path, given, "rope_theta", 5e6),
        "eps": positive(path, given, "norm_eps", 1e-5),
    },
    adapters=denoiser_namings(),
)
# The network for calls without a prompt has the same tensors: its folder tells which one a file holds, or a prefix.
UNCONDITIONAL_NETWORK = IDEOGRAM4_NETWORK._replace(
    name="ideogram4-unconditional",
    title="Ideogram 4's network for calls without a prompt",
    kind="controlnet",  # beside the denoiser, and looked for before it
    places=tuple(
        place
        for one in IDEOGRAM4_NETWORK.places
        for place in (
            one._replace(prefixes=(f"{UNCONDITIONAL}.",)),
            one._replace(architectures=(UNCONDITIONAL,)),
        )
    ),
    folder=Folder(UNCONDITIONAL, DIFFUSERS_FILE, _FOLDER, _config),
    adapters=(),
)
NETWORKS = (IDEOGRAM4_NETWORK, UNCONDITIONAL_NETWORK)
