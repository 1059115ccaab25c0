"""Z-Image's transformer: sizes, tensors, names in files.

Names are the single file's, as in this folder. Tongyi-MAI's folder, which diffusers' class reads unchanged,
splits q, k and v, and names the first and last layer after the patch size ("2-1": 2 x 2 pixels, 1 frame).
"""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.networks.config import positive, rotary_axes
from refsd.networks.dimensions import Shape, Shapes, bare, blocks, linear, one_stack, read_size
from refsd.networks.keymap import CONCAT, Keymap, block_rows, prefix_rows
from refsd.networks.naming import DENOISER_NAMINGS
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, FOLDER, Folder, Location, Network, counted, same


class ZImageSize(NamedTuple):
    """Dimensions of the transformer; the defaults are Z-Image's.

    channels:    channels of a token, which is a patch
    head_dim:    channels of the norms of queries and keys
    context_dim: channels of Qwen3's hidden states
    frequencies: channels of the sinusoidal time embedding
    time_mlp:    hidden channels of the time embedding's MLP
    time_dim:    its output channels, which feed the modulation
    """

    hidden: int = 3840
    layers: int = 30
    noise_refiners: int = 2
    context_refiners: int = 2
    head_dim: int = 128
    mlp: int = 10240
    channels: int = 64
    context_dim: int = 2560
    frequencies: int = 256
    time_mlp: int = 1024
    time_dim: int = 256


ZIMAGE = ZImageSize()


def zimage_shapes(size: ZImageSize) -> Shapes:
    """Return the shapes of all tensors.

    Source: Tongyi-MAI/Z-Image, zimage/transformer.py: ZImageTransformer2DModel.
    """
    D, C = size.hidden, size.time_dim
    shapes: Shapes = {"x_pad_token": (1, D), "cap_pad_token": (1, D)}
    shapes |= linear("x_embedder", size.channels, D)
    shapes |= linear("final_layer.linear", D, size.channels) | linear("final_layer.adaLN_modulation.1", C, D)
    for i in range(size.noise_refiners):
        shapes |= _block(f"noise_refiner.{i}", size) | linear(f"noise_refiner.{i}.adaLN_modulation.0", C, 4 * D)
    for i in range(size.context_refiners):
        shapes |= _block(f"context_refiner.{i}", size)
    shapes |= linear("t_embedder.mlp.0", size.frequencies, size.time_mlp)
    shapes |= linear("t_embedder.mlp.2", size.time_mlp, C)
    shapes |= {"cap_embedder.0.weight": (size.context_dim,)} | linear("cap_embedder.1", size.context_dim, D)
    for i in range(size.layers):
        shapes |= _block(f"layers.{i}", size) | linear(f"layers.{i}.adaLN_modulation.0", C, 4 * D)
    return shapes


_AROUND = ("x_embedder.weight", "cap_embedder.1.weight", "final_layer.linear.weight")
_REFINERS = ("noise_refiner.", "context_refiner.")


def zimage_size(shapes: Mapping[str, Shape]) -> ZImageSize:
    """Infer the size from shapes under the single file's names. Dimensions of missing tensors are Z-Image's."""
    return read_size(
        ZIMAGE,
        zimage_shapes,
        shapes,
        layers=blocks(shapes, "layers.", ZIMAGE.layers, _AROUND),
        noise_refiners=one_stack(shapes, "noise_refiner.", ZIMAGE.noise_refiners, _REFINERS, _AROUND),
        context_refiners=one_stack(shapes, "context_refiner.", ZIMAGE.context_refiners, _REFINERS, _AROUND),
    )


def _block(at: str, size: ZImageSize) -> Shapes:
    return block_shapes(at, size.hidden, size.head_dim, size.mlp)


def block_shapes(at: str, D: int, head_dim: int, mlp: int) -> Shapes:
    """Return the shapes of a block under the prefix `at`, without its modulation."""
    shapes = bare(f"{at}.attention.qkv", D, 3 * D) | bare(f"{at}.attention.out", D, D)
    shapes |= {f"{at}.attention.{which}_norm.weight": (head_dim,) for which in "qk"}
    shapes |= bare(f"{at}.feed_forward.w1", D, mlp)
    shapes |= bare(f"{at}.feed_forward.w2", mlp, D)
    shapes |= bare(f"{at}.feed_forward.w3", D, mlp)
    return shapes | {f"{at}.{name}.weight": (D,) for name in _NORMS}


_NORMS = ("attention_norm1", "ffn_norm1", "attention_norm2", "ffn_norm2")
# (our name, their names, rule): several of theirs are concatenated; other names are the same.
_ENDS = (
    ("x_embedder", "all_x_embedder.2-1"),
    ("final_layer.linear", "all_final_layer.2-1.linear"),
    ("final_layer.adaLN_modulation.1", "all_final_layer.2-1.adaLN_modulation.1"),
)
BLOCK_NAMES = (
    ("attention.qkv", ("attention.to_q", "attention.to_k", "attention.to_v"), CONCAT),
    ("attention.out", "attention.to_out.0"),
    ("attention.q_norm", "attention.norm_q"),
    ("attention.k_norm", "attention.norm_k"),
)


def zimage_keymap(layers: int = 30, refiners: int = 2) -> Keymap:
    """Map the single file's names to and from Tongyi-MAI's folder, which diffusers reads unchanged."""
    rows = prefix_rows(_ENDS)
    for stack, n in (("layers", layers), ("noise_refiner", refiners), ("context_refiner", refiners)):
        rows += block_rows(n, stack, stack, BLOCK_NAMES)
    return Keymap(rows, rest_same=True)


def _zimage_config(size) -> dict:
    return {
        "_class_name": "ZImageTransformer2DModel",
        "all_patch_size": [2],
        "all_f_patch_size": [1],
        "in_channels": size.channels // 4,
        "dim": size.hidden,
        "n_layers": size.layers,
        "n_refiner_layers": size.noise_refiners,
        "n_heads": size.hidden // size.head_dim,
        "n_kv_heads": size.hidden // size.head_dim,
        "norm_eps": 1e-05,
        "qk_norm": True,
        "cap_feat_dim": size.context_dim,
        "rope_theta": 256.0,
        "t_scale": 1000.0,
        "axes_dims": [32, 48, 48],
        "axes_lens": [1536, 512, 512],
    }


_FOLDER_NAMES = counted(
    "diffusers",
    zimage_keymap,
    {"layers.": ZIMAGE.layers, "noise_refiner.": ZIMAGE.noise_refiners},
    lambda size: (size.layers, size.noise_refiners),
)


ZIMAGE_NETWORK = Network(
    "zimage",
    "Z-Image",
    "denoiser",
    zimage_size,
    zimage_shapes,
    places=(
        Location(_FOLDER_NAMES, ("model.diffusion_model.", *FOLDER), ("all_x_embedder.",)),
        Location(same("original"), DENOISER, ("cap_embedder.", "noise_refiner.")),
    ),
    folder=Folder("transformer", DIFFUSERS_FILE, _FOLDER_NAMES, _zimage_config),
    computed={
        "all_patch_size": ([2],),
        "all_f_patch_size": ([1],),
        "qk_norm": (True,),
        "t_scale": (1000.0,),
        "siglip_feat_dim": (None,),
    },
    config=lambda path, shapes, given: {
        "axes_dim": rotary_axes(path, given, "axes_dims", [32, 48, 48]),
        "theta": positive(path, given, "rope_theta", 256.0),
        "eps": positive(path, given, "norm_eps", 1e-5),
    },
    unread=("norm_final.weight",),
    adapters=DENOISER_NAMINGS,
)
NETWORKS = (ZIMAGE_NETWORK,)
