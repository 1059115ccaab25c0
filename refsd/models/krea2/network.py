"""Krea 2's transformer: sizes, tensors, names in files.

Names are diffusers'. Krea's own files, ComfyUI's and GGUF files have other ones, in which a block's table is one
row, and some exports write the weights of the hidden states without their axis of length 1.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from refsd.networks.config import positive, rotary_axes_of_heads
from refsd.networks.dimensions import Shape, Shapes, bare, blocks, linear, one_stack, read_size
from refsd.networks.keymap import Keymap, Rule, block_rows, prefix_rows, reshaped
from refsd.networks.naming import denoiser_namings
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, FOLDER, Folder, Location, Network, counted, same


class Krea2Size(NamedTuple):
    """Dimensions of the transformer; the defaults are Krea 2's.

    head_dim:    channels of the norms of queries and keys
    keys:        channels of all heads of keys, and of values
    channels:    channels of a token, 4 for each latent channel
    frequencies: channels of the sinusoidal time embedding
    context_dim: channels of Qwen3-VL's hidden states
    states:      hidden states of each token
    text_*:      the same in the blocks that fuse them
    layerwise, refiners: blocks that attend over the states of a token, and over the tokens
    """

    hidden: int = 6144
    layers: int = 28
    head_dim: int = 128
    keys: int = 1536
    mlp: int = 16384
    channels: int = 64
    frequencies: int = 256
    context_dim: int = 2560
    states: int = 12
    text_head_dim: int = 128
    text_keys: int = 2560
    text_mlp: int = 6912
    layerwise: int = 2
    refiners: int = 2


KREA2 = Krea2Size()
PROJECTOR = "text_fusion.projector.weight"
_LAYERWISE, _REFINERS = "text_fusion.layerwise_blocks.", "text_fusion.refiner_blocks."
_AROUND = ("img_in.weight", "txt_in.linear_1.weight", "final_layer.linear.weight")


def krea2_shapes(size: Krea2Size) -> Shapes:
    """Return the shapes of all tensors. Source: diffusers transformer_krea2.py, Krea2Transformer2DModel."""
    D, E = size.hidden, size.context_dim
    text = E, size.text_head_dim, size.text_keys, size.text_mlp
    shapes = linear("img_in", size.channels, D)
    shapes |= linear("time_embed.linear_1", size.frequencies, D) | linear("time_embed.linear_2", D, D)
    shapes |= linear("time_mod_proj", D, 6 * D)
    for i in range(size.layerwise):
        shapes |= _block(f"{_LAYERWISE}{i}", *text)
    shapes[PROJECTOR] = (1, size.states)
    for i in range(size.refiners):
        shapes |= _block(f"{_REFINERS}{i}", *text)
    shapes |= {"txt_in.norm.weight": (E,)} | linear("txt_in.linear_1", E, D) | linear("txt_in.linear_2", D, D)
    for i in range(size.layers):
        shapes[f"transformer_blocks.{i}.scale_shift_table"] = (6, D)
        shapes |= _block(f"transformer_blocks.{i}", D, size.head_dim, size.keys, size.mlp)
    shapes |= {"final_layer.scale_shift_table": (2, D), "final_layer.norm.weight": (D,)}
    return shapes | linear("final_layer.linear", D, size.channels)


def _block(at: str, width: int, head_dim: int, keys: int, mlp: int) -> Shapes:
    shapes: Shapes = {f"{at}.norm1.weight": (width,), f"{at}.norm2.weight": (width,)}
    for name, rows in (("to_q", width), ("to_k", keys), ("to_v", keys), ("to_gate", width), ("to_out.0", width)):
        shapes[f"{at}.attn.{name}.weight"] = (rows, width)
    shapes |= {f"{at}.attn.norm_{which}.weight": (head_dim,) for which in "qk"}
    for name, inputs, outputs in (("gate", width, mlp), ("up", width, mlp), ("down", mlp, width)):
        shapes |= bare(f"{at}.ff.{name}", inputs, outputs)
    return shapes


def krea2_size(shapes: Mapping[str, Shape]) -> Krea2Size:
    """Infer the size from shapes under diffusers' names. Dimensions of missing tensors are Krea 2's."""
    fusions = (_LAYERWISE, _REFINERS)
    return read_size(
        KREA2,
        krea2_shapes,
        shapes,
        layers=blocks(shapes, "transformer_blocks.", KREA2.layers, _AROUND),
        layerwise=one_stack(shapes, _LAYERWISE, KREA2.layerwise, fusions, _AROUND),
        refiners=one_stack(shapes, _REFINERS, KREA2.refiners, fusions, _AROUND),
    )


def _of_rows(rows: int, flat: Callable[[int], Shape]) -> Rule:
    """Return the rule of a matrix of `rows` rows that files may write as one row, and refsd as flat(its length)."""

    def ours(shapes: Sequence[Shape]) -> Shape:
        n = math.prod(shapes[0])
        return (rows, n // rows) if len(shapes[0]) == 1 and n % rows == 0 else shapes[0]

    return Rule(
        ours,
        lambda parts: reshaped(parts[0], ours([parts[0].shape])),
        lambda tensor, _: [reshaped(tensor, flat(math.prod(tensor.shape)))],
    )


_TABLE = _of_rows(6, lambda n: (n,))
_WEIGHTS = _of_rows(1, lambda n: (1, n))

# (our name, Krea's[, rule])
_ENDS = (
    ("img_in", "first"),
    ("time_embed.linear_1", "tmlp.0"),
    ("time_embed.linear_2", "tmlp.2"),
    ("time_mod_proj", "tproj.1"),
    ("text_fusion.projector", "txtfusion.projector", _WEIGHTS),
    ("txt_in.norm.weight", "txtmlp.0.scale"),
    ("txt_in.linear_1", "txtmlp.1"),
    ("txt_in.linear_2", "txtmlp.3"),
    ("final_layer.scale_shift_table", "last.modulation.lin"),
    ("final_layer.norm.weight", "last.norm.scale"),
    ("final_layer.linear", "last.linear"),
)
_BLOCK = (
    ("norm1.weight", "prenorm.scale"),
    ("norm2.weight", "postnorm.scale"),
    ("attn.to_q", "attn.wq"),
    ("attn.to_k", "attn.wk"),
    ("attn.to_v", "attn.wv"),
    ("attn.to_gate", "attn.gate"),
    ("attn.to_out.0", "attn.wo"),
    ("attn.norm_q.weight", "attn.qknorm.qnorm.scale"),
    ("attn.norm_k.weight", "attn.qknorm.knorm.scale"),
    ("ff", "mlp"),
)


def krea2_keymap(layers: int = 28, layerwise: int = 2, refiners: int = 2) -> Keymap:
    """Map diffusers' names to and from Krea's own."""
    rows = prefix_rows(_ENDS)
    rows += block_rows(layers, "transformer_blocks", "blocks", (("scale_shift_table", "mod.lin", _TABLE), *_BLOCK))
    rows += block_rows(layerwise, _LAYERWISE[:-1], "txtfusion.layerwise_blocks", _BLOCK)
    rows += block_rows(refiners, _REFINERS[:-1], "txtfusion.refiner_blocks", _BLOCK)
    return Keymap(rows)


def file_names(size: Krea2Size) -> Keymap:
    """Map diffusers' names to those of Krea's own file of this size."""
    return krea2_keymap(size.layers, size.layerwise, size.refiners)


def _config(size: Krea2Size) -> dict:
    return {
        "_class_name": "Krea2Transformer2DModel",
        "in_channels": size.channels,
        "num_layers": size.layers,
        "attention_head_dim": size.head_dim,
        "num_attention_heads": size.hidden // size.head_dim,
        "num_key_value_heads": size.keys // size.head_dim,
        "intermediate_size": size.mlp,
        "timestep_embed_dim": size.frequencies,
        "text_hidden_dim": size.context_dim,
        "num_text_layers": size.states,
        "text_num_attention_heads": size.context_dim // size.text_head_dim,
        "text_num_key_value_heads": size.text_keys // size.text_head_dim,
        "text_intermediate_size": size.text_mlp,
        "num_layerwise_text_blocks": size.layerwise,
        "num_refiner_text_blocks": size.refiners,
        "axes_dims_rope": [32, 48, 48],
        "rope_theta": 1000.0,
        "norm_eps": 1e-05,
    }


_NAMES = same("diffusers")
_NATIVE = counted(
    "krea",
    krea2_keymap,
    {
        "blocks.": KREA2.layers,
        "txtfusion.layerwise_blocks.": KREA2.layerwise,
        "txtfusion.refiner_blocks.": KREA2.refiners,
    },
    lambda size: (size.layers, size.layerwise, size.refiners),
)

KREA2_NETWORK = Network(
    "krea2",
    "Krea 2",
    "denoiser",
    krea2_size,
    krea2_shapes,
    places=(
        Location(
            _NAMES,
            ("model.diffusion_model.", *FOLDER),
            ("text_fusion.", "time_mod_proj.", "transformer_blocks.0.attn.to_gate."),
        ),
        Location(_NATIVE, DENOISER, ("txtfusion.", "tproj.1.", "blocks.0.attn.gate.")),
    ),
    folder=Folder("transformer", DIFFUSERS_FILE, _NAMES, _config),
    config=lambda path, shapes, given: {
        "axes_dim": rotary_axes_of_heads(path, given, [32, 48, 48]),
        "theta": positive(path, given, "rope_theta", 1000.0),
        "eps": positive(path, given, "norm_eps", 1e-5),
    },
    unread=("last.up.weight", "last.down.weight"),
    adapters=denoiser_namings("krea"),
)
NETWORKS = (KREA2_NETWORK,)
