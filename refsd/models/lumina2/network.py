"""Lumina-Image 2.0's transformer: sizes, tensors, names in files.

Names are those of the original's and ComfyUI's files, most of which Z-Image's tensors share. diffusers splits q, k
and v, of which k and v have fewer rows, and names what follows the modulation after its own classes.
"""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.networks.config import positive, rotary_axes
from refsd.networks.dimensions import Shape, Shapes, bare, blocks, dim, has, linear, one_stack, read_size
from refsd.networks.keymap import CONCAT, Keymap, block_rows, prefix_rows
from refsd.networks.naming import DENOISER_NAMINGS
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, FOLDER, Folder, Location, Network, Rows, counted, same


class Lumina2Size(NamedTuple):
    """Dimensions of the transformer; the defaults are Lumina-Image 2.0's.

    head_dim:    channels of the norms of queries and keys
    keys:        channels of all heads of keys, and of values
    channels:    channels of a token, which is a patch
    context_dim: channels of Gemma 2's hidden states
    frequencies: channels of the sinusoidal time embedding
    time_dim:    hidden and output channels of its MLP
    """

    hidden: int = 2304
    layers: int = 26
    noise_refiners: int = 2
    context_refiners: int = 2
    head_dim: int = 96
    keys: int = 768
    mlp: int = 9216
    channels: int = 64
    context_dim: int = 2304
    frequencies: int = 256
    time_dim: int = 1024


LUMINA2 = Lumina2Size()
_AROUND = ("x_embedder.weight", "cap_embedder.1.weight", "final_layer.linear.weight")
_REFINERS = ("noise_refiner.", "context_refiner.")
_NORMS = ("attention_norm1", "ffn_norm1", "attention_norm2", "ffn_norm2")


def lumina2_shapes(size: Lumina2Size) -> Shapes:
    """Return the shapes of all tensors. Source: Alpha-VLLM/Lumina-Image-2.0, models/model.py: NextDiT."""
    D, C = size.hidden, size.time_dim
    shapes = linear("x_embedder", size.channels, D)
    for stack, n, modulated in (
        ("noise_refiner", size.noise_refiners, True),
        ("context_refiner", size.context_refiners, False),
        ("layers", size.layers, True),
    ):
        for i in range(n):
            shapes |= _block(f"{stack}.{i}", size)
            shapes |= linear(f"{stack}.{i}.adaLN_modulation.1", C, 4 * D) if modulated else {}
    shapes |= linear("t_embedder.mlp.0", size.frequencies, C) | linear("t_embedder.mlp.2", C, C)
    shapes |= {"cap_embedder.0.weight": (size.context_dim,)} | linear("cap_embedder.1", size.context_dim, D)
    return shapes | linear("final_layer.linear", D, size.channels) | linear("final_layer.adaLN_modulation.1", C, D)


def _block(at: str, size: Lumina2Size) -> Shapes:
    D = size.hidden
    shapes = bare(f"{at}.attention.qkv", D, D + 2 * size.keys)
    shapes |= bare(f"{at}.attention.out", D, D)
    shapes |= {f"{at}.attention.{which}_norm.weight": (size.head_dim,) for which in "qk"}
    for name, inputs, outputs in (("w1", D, size.mlp), ("w2", size.mlp, D), ("w3", D, size.mlp)):
        shapes |= bare(f"{at}.feed_forward.{name}", inputs, outputs)
    return shapes | {f"{at}.{name}.weight": (D,) for name in _NORMS}


def lumina2_size(shapes: Mapping[str, Shape]) -> Lumina2Size:
    """Infer the size from shapes under the original's names. Dimensions of missing tensors are Lumina 2's."""
    hidden = dim(shapes, "x_embedder.weight", 0, dim(shapes, "x_embedder.bias", 0, LUMINA2.hidden))
    first = next((stack for stack in ("layers.", *_REFINERS) if has(shapes, f"{stack}0.")), "layers.") + "0."
    return read_size(
        LUMINA2,
        lumina2_shapes,
        shapes,
        layers=blocks(shapes, "layers.", LUMINA2.layers, _AROUND),
        noise_refiners=one_stack(shapes, "noise_refiner.", LUMINA2.noise_refiners, _REFINERS, _AROUND),
        context_refiners=one_stack(shapes, "context_refiner.", LUMINA2.context_refiners, _REFINERS, _AROUND),
        keys=max(1, (dim(shapes, f"{first}attention.qkv.weight", 0, hidden + 2 * LUMINA2.keys) - hidden) // 2),
    )


# (our name, diffusers' names, rule): several of theirs are concatenated.
_EMBEDDERS = "time_caption_embed."
_ENDS = (
    ("x_embedder", "x_embedder"),
    ("t_embedder.mlp.0", _EMBEDDERS + "timestep_embedder.linear_1"),
    ("t_embedder.mlp.2", _EMBEDDERS + "timestep_embedder.linear_2"),
    ("cap_embedder", _EMBEDDERS + "caption_embedder"),
    ("final_layer.adaLN_modulation.1", "norm_out.linear_1"),
    ("final_layer.linear", "norm_out.linear_2"),
)
_BLOCK = (
    ("attention.qkv", ("attn.to_q", "attn.to_k", "attn.to_v"), CONCAT),
    ("attention.out", "attn.to_out.0"),
    ("attention.q_norm", "attn.norm_q"),
    ("attention.k_norm", "attn.norm_k"),
    ("feed_forward.w1", "feed_forward.linear_1"),
    ("feed_forward.w2", "feed_forward.linear_2"),
    ("feed_forward.w3", "feed_forward.linear_3"),
    ("attention_norm2", "norm2"),
    ("ffn_norm1", "ffn_norm1"),
    ("ffn_norm2", "ffn_norm2"),
)
_MODULATED = (("attention_norm1", "norm1.norm"), ("adaLN_modulation.1", "norm1.linear"))
_UNMODULATED = (("attention_norm1", "norm1"),)


def lumina2_keymap(layers: int = 26, noise_refiners: int = 2, context_refiners: int = 2) -> Keymap:
    """Map the original's names to and from diffusers'."""
    rows = prefix_rows(_ENDS)
    rows += block_rows(layers, "layers", "layers", _BLOCK + _MODULATED)
    rows += block_rows(noise_refiners, "noise_refiner", "noise_refiner", _BLOCK + _MODULATED)
    rows += block_rows(context_refiners, "context_refiner", "context_refiner", _BLOCK + _UNMODULATED)
    return Keymap(rows)


def _qkv_rows(size: Lumina2Size) -> Rows:
    """Split qkv into the rows of q, k and v."""
    return lambda name, shape: (size.hidden, size.keys, size.keys) if name.endswith("qkv.weight") else None


def _config(size: Lumina2Size) -> dict:
    return {
        "_class_name": "Lumina2Transformer2DModel",
        "sample_size": 128,
        "patch_size": 2,
        "in_channels": size.channels // 4,
        "out_channels": None,
        "hidden_size": size.hidden,
        "num_layers": size.layers,
        "num_refiner_layers": size.noise_refiners,
        "num_attention_heads": size.hidden // size.head_dim,
        "num_kv_heads": size.keys // size.head_dim,
        "multiple_of": 1 if size.mlp != 4 * size.hidden else 256,
        "ffn_dim_multiplier": None if size.mlp == 4 * size.hidden else (size.mlp + 0.5) / (4 * size.hidden),
        "norm_eps": 1e-05,
        "scaling_factor": 1.0,
        "axes_dim_rope": [32, 32, 32],
        "axes_lens": [300, 512, 512],
        "cap_feat_dim": size.context_dim,
    }


_FOLDER_NAMES = counted(
    "diffusers",
    lumina2_keymap,
    {
        "layers.": LUMINA2.layers,
        "noise_refiner.": LUMINA2.noise_refiners,
        "context_refiner.": LUMINA2.context_refiners,
    },
    lambda size: (size.layers, size.noise_refiners, size.context_refiners),
)
_MODULATIONS = tuple(f"{stack}{i}.adaLN_modulation.1." for stack in ("layers.", "noise_refiner.") for i in (0, 1))

LUMINA2_NETWORK = Network(
    "lumina2",
    "Lumina 2",
    "denoiser",
    lumina2_size,
    lumina2_shapes,
    places=(
        Location(_FOLDER_NAMES, ("model.diffusion_model.", *FOLDER), (_EMBEDDERS,)),
        Location(same("original"), DENOISER, _MODULATIONS),
    ),
    folder=Folder("transformer", DIFFUSERS_FILE, _FOLDER_NAMES, _config, _qkv_rows),
    computed={
        "patch_size": (2,),
        "scaling_factor": (1.0,),
    },
    config=lambda path, shapes, given: {
        "axes_dim": rotary_axes(path, given, "axes_dim_rope", [32, 32, 32]),
        "eps": positive(path, given, "norm_eps", 1e-5),
    },
    unread=("norm_final.weight",),
    before=("zimage",),
    adapters=DENOISER_NAMINGS,
)
NETWORKS = (LUMINA2_NETWORK,)
