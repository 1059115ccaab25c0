"""The transformer of FLUX.3 klein (base and distilled): sizes, tensors, names in files."""

from collections.abc import Mapping
from typing import NamedTuple

from refsd.models.flux.network import qk_norm
from refsd.models.flux.norm_names import ORIGINAL
from refsd.networks.config import positive, rotary_axes_of_heads
from refsd.networks.dimensions import Shape, Shapes, bare, blocks, count, has, read_size
from refsd.networks.keymap import SWAP, Keymap, block_rows, prefix_rows
from refsd.networks.naming import DENOISER_NAMINGS
from refsd.networks.network import DENOISER, DIFFUSERS_FILE, FOLDER, Folder, Location, Network, counted

PICTURES = "image", "image_cond"  # the modes of tokens besides the text
MODES = (*PICTURES, "txt")


class Flux3Size(NamedTuple):
    """Dimensions of the transformer; the defaults are FLUX.3 klein's.

    mode_blocks, single_blocks: blocks of each mode alone, and of all modes together
    head_dim:    channels of the norms of queries and keys
    channels:    channels of a token, which is one position of the packed latent
    cond_channels: the same of a reference
    context_dim: channels of eight concatenated hidden states
    frequencies: channels of the sinusoidal time embedding
    target_time: True for the distilled model, which embeds the time at which a step ends
    """

    hidden: int = 3072
    mode_blocks: int = 5
    single_blocks: int = 28
    head_dim: int = 128
    mlp: int = 3 * 3072
    channels: int = 128
    cond_channels: int = 128
    context_dim: int = 8 * 2560
    frequencies: int = 256
    target_time: bool = False


FLUX3_KLEIN = Flux3Size()
FLUX3_DISTILLED = Flux3Size(target_time=True)
TARGET_TIME = "ref_time_in.in_layer.weight"
_STACKS = "txt_mode_blocks.", "content_mode_blocks.image.", "content_mode_blocks.image_cond."
_FIRST = tuple(f"{stack}0." for stack in (*_STACKS, "single_blocks."))
# A stack without tensors counts as absent in a file that has all of these.
_AROUND = ("emb_in.image.weight", "txt_in.weight", "final_layer.image.linear.weight")


def flux3_shapes(size: Flux3Size) -> Shapes:
    """Return the shapes of all tensors. Source: diffusers transformer_flux3.py, Flux3Transformer2DModel."""
    D = size.hidden
    shapes = bare("emb_in.image", size.channels, D) | bare("emb_in.image_cond", size.cond_channels, D)
    shapes |= bare("txt_in", size.context_dim, D)
    for name in ("time_in", "ref_time_in")[: 1 + size.target_time]:
        shapes |= bare(f"{name}.in_layer", size.frequencies, D) | bare(f"{name}.out_layer", D, D)
    for stage in ("early", "single"):
        for mode in MODES:
            shapes |= bare(f"{stage}_stream_modulations.{mode}.lin", D, 3 * D)
    for stack, n in (*((stack, size.mode_blocks) for stack in _STACKS), ("single_blocks.", size.single_blocks)):
        for i in range(n):
            shapes |= _block(f"{stack}{i}", size)
    shapes |= bare("final_layer.image.linear", D, size.channels)
    return shapes | bare("final_layer.image.adaLN_modulation.1", D, 2 * D)


def _block(at: str, size: Flux3Size) -> Shapes:
    D, shapes = size.hidden, qk_norm(f"{at}.norm", size.head_dim)
    for name in ("q_proj", "k_proj", "v_proj", "attn_out"):
        shapes |= bare(f"{at}.{name}", D, D)
    return shapes | bare(f"{at}.mlp_in", D, 2 * size.mlp) | bare(f"{at}.mlp_out", size.mlp, D)


def flux3_size(shapes: Mapping[str, Shape]) -> Flux3Size:
    """Infer the size from shapes under the original's names. Dimensions of missing tensors are klein's."""
    mode_blocks = max(count(shapes, stack, 0) for stack in _STACKS)
    return read_size(
        FLUX3_KLEIN,
        flux3_shapes,
        shapes,
        mode_blocks=mode_blocks or blocks(shapes, _STACKS[0], FLUX3_KLEIN.mode_blocks, _AROUND),
        single_blocks=blocks(shapes, "single_blocks.", FLUX3_KLEIN.single_blocks, _AROUND),
        target_time=has(shapes, "ref_time_in."),
    )


# (original's name, diffusers'[, rule])
_ENDS = (
    *((f"emb_in.{mode}", f"x_embedders.{mode}") for mode in PICTURES),
    ("txt_in", "context_embedder"),
    ("time_in.in_layer", "timestep_embedder.linear_1"),
    ("time_in.out_layer", "timestep_embedder.linear_2"),
    ("ref_time_in.in_layer", "target_timestep_embedder.linear_1"),
    ("ref_time_in.out_layer", "target_timestep_embedder.linear_2"),
    *(
        (f"{stage}_stream_modulations.{mode}.lin", f"{stage}_stream_modulations.{mode}.linear")
        for stage in ("early", "single")
        for mode in MODES
    ),
    ("final_layer.image.linear", "proj_out"),
    ("final_layer.image.adaLN_modulation.1", "norm_out.linear", SWAP),
)
_BLOCK = (
    ("q_proj", "attn.to_q"),
    ("k_proj", "attn.to_k"),
    ("v_proj", "attn.to_v"),
    ("attn_out", "attn.to_out.0"),
    ("norm.query_norm.scale", "attn.norm_q.weight"),
    ("norm.key_norm.scale", "attn.norm_k.weight"),
    ("mlp_in", "ff.linear_in"),
    ("mlp_out", "ff.linear_out"),
)


def flux3_keymap(
    text_blocks: int = 5, picture_blocks: int = 5, reference_blocks: int = 5, single_blocks: int = 28
) -> Keymap:
    """Map FLUX.3's names to and from diffusers', which swaps scale and shift of the last modulation."""
    rows = prefix_rows(_ENDS)
    for ours, theirs, n in (
        ("txt_mode_blocks", "txt_mode_blocks", text_blocks),
        ("content_mode_blocks.image", "mode_blocks.image", picture_blocks),
        ("content_mode_blocks.image_cond", "mode_blocks.image_cond", reference_blocks),
        ("single_blocks", "single_transformer_blocks", single_blocks),
    ):
        rows += block_rows(n, ours, theirs, _BLOCK)
    return Keymap(rows)


def _config(size: Flux3Size) -> dict:
    return {
        "_class_name": "Flux3Transformer2DModel",
        "in_channels": size.channels,
        "cond_in_channels": size.cond_channels,
        "num_layers": size.mode_blocks,
        "num_single_layers": size.single_blocks,
        "attention_head_dim": size.head_dim,
        "num_attention_heads": size.hidden // size.head_dim,
        "joint_attention_dim": size.context_dim,
        "timestep_channels": size.frequencies,
        "mlp_ratio": size.mlp / size.hidden,
        "axes_dims_rope": [32, 32, 32, 32],
        "rope_theta": 10000,
        "eps": 1e-06,
        "flow_map": size.target_time,
    }


_DIFFUSERS = counted(
    "diffusers",
    flux3_keymap,
    {
        "txt_mode_blocks.": 5,
        "mode_blocks.image.": 5,
        "mode_blocks.image_cond.": 5,
        "single_transformer_blocks.": 28,
    },
    lambda size: (size.mode_blocks, size.mode_blocks, size.mode_blocks, size.single_blocks),
)

FLUX3 = Network(
    "flux3",
    "FLUX.3",
    "denoiser",
    flux3_size,
    flux3_shapes,
    places=(
        Location(
            _DIFFUSERS, FOLDER, ("early_stream_modulations.image.linear.", "mode_blocks.image.", "x_embedders.")
        ),
        Location(ORIGINAL, DENOISER, ("early_stream_modulations.", "content_mode_blocks.", "emb_in.")),
    ),
    folder=Folder("transformer", DIFFUSERS_FILE, _DIFFUSERS, _config),
    config=lambda path, shapes, given: {
        "axes_dim": rotary_axes_of_heads(path, given, [32, 32, 32, 32]),
        "theta": positive(path, given, "rope_theta", 10000.0),
        "eps": positive(path, given, "eps", 1e-6),
    },
    unread=("repa_projectors.*",),
    adapters=DENOISER_NAMINGS,
    before=("flux",),
)
NETWORKS = (FLUX3,)
