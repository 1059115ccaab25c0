"""MiniMax-H3's video autoencoder: sizes, tensors, names in files, config.json."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refsd.models.vae_minimax_h3 import DECODER_EPS, FRAMES, HALVES, HEAD_DIM, NORM_EPS, SIDE, THETA
from refsd.models.vae_wan.latents import statistics
from refsd.models.vae_wan.layers import conv3d
from refsd.networks.config import positive
from refsd.networks.dimensions import Shape, Shapes, blocks, count, dim, linear, norm, read_size
from refsd.networks.keymap import CONCAT, SWAP, Keymap, Rule, block_rows, prefix_rows
from refsd.networks.network import DIFFUSERS_FILE, Folder, Location, Network, counted, same
from refsd.networks.recipe import alone
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import StoredTensor, stored

# Mean and standard deviation of each latent channel: vae/config.json of the released model.
LATENTS_MEAN = (
    *(0.858090341091156, -0.960659146308899, 1.066164016723633, -0.509032547473907, -0.272758185863495),
    *(-1.367541432380676, -0.255325496196747, -0.26907554268837, -0.537684082984924, -0.046409729868174),
    *(0.66573703289032, 0.196901276707649, -0.546060800552368, -0.403534203767776, -0.236830249428749),
    *(0.259284526109695, -0.301339447498322, 0.211341992020607, -1.120684862136841, 0.358193337917328),
    *(-0.042251437902451, 0.260482996702194, 0.228640928864479, 0.705603182315826),
)
LATENTS_STD = (
    *(1.222377419471741, 1.276726365089417, 1.683177471160889, 1.754945516586304, 1.563621640205383),
    *(2.194143533706665, 0.965313792228699, 1.056988596916199, 0.841948926448822, 0.772995293140411),
    *(1.895593762397766, 0.946841835975647, 0.799680948257446, 0.449889004230499, 0.719739973545075),
    *(0.693629324436188, 2.961095094680786, 2.76941990852356, 3.049618482589722, 2.108805418014527),
    *(3.276226282119751, 3.162735700607300, 2.281681299209595, 2.612784385681153),
)
LEVELS, SAMPLED = 6, 4  # of the encoder; those that halve the sides
BLOCKS = "decoder.transformer_blocks."
_AROUND = ("decoder.x_embedder.weight", "decoder.proj_out.weight")


class MiniMaxH3VAESize(NamedTuple):
    """Dimensions of the autoencoder; the defaults are those of the released model.

    widths:    channels of each level of the encoder, from the picture's size on
    hidden:    channels of the decoder's tokens
    mlp:       channels inside its MLPs
    registers: learned tokens behind those of the latents
    """

    widths: tuple[int, ...] = (128, 256, 256, 512, 512, 1024)
    res_blocks: int = 2
    latent_channels: int = 24
    hidden: int = 2048
    layers: int = 36
    mlp: int = 8192
    registers: int = 4


def minimax_h3_vae_shapes(size: MiniMaxH3VAESize) -> Shapes:
    """Return the shapes of all tensors. Source: MiniMax's vae_cnn.py and vae_vit.py, in sglang 0.5.23."""
    z, ch, D = size.latent_channels, size.widths[0], size.hidden
    shapes = conv3d("encoder.conv_in", 3, ch)
    for level, width in enumerate(size.widths):
        for i in range(size.res_blocks):
            shapes |= _res_block(f"encoder.down.{level}.block.{i}", ch, width)
            ch = width
        if level < SAMPLED:
            shapes |= conv3d(f"encoder.down.{level}.downsample.conv", ch, ch)
    shapes |= norm("encoder.norm_out", ch) | conv3d("encoder.conv_out", ch, 2 * z)
    shapes |= conv3d("quant_conv", 2 * z, 2 * z, (1, 1, 1)) | conv3d("post_quant_conv", z, z, (1, 1, 1))
    shapes |= {"decoder.register_tokens": (1, size.registers, D)} | linear("decoder.x_embedder", z, D)
    for i in range(size.layers):
        at = f"{BLOCKS}{i}"
        shapes |= {f"{at}.{name}": (D,) for name in ("norm1.weight", "norm2.weight", "scale1", "scale2")}
        shapes |= linear(f"{at}.attn.to_qkv", D, 3 * D) | linear(f"{at}.attn.to_out", D, D)
        shapes |= linear(f"{at}.ff.w1", D, 2 * size.mlp) | linear(f"{at}.ff.w2", size.mlp, D)
    return shapes | norm("decoder.norm_out", D) | linear("decoder.proj_out", D, 3 * FRAMES * SIDE**2)


def _res_block(at: str, inputs: int, outputs: int) -> Shapes:
    shapes = norm(f"{at}.norm1", inputs) | conv3d(f"{at}.conv1", inputs, outputs)
    shapes |= norm(f"{at}.norm2", outputs) | conv3d(f"{at}.conv2", outputs, outputs)
    return shapes | conv3d(f"{at}.nin_shortcut", inputs, outputs, (1, 1, 1)) if inputs != outputs else shapes


def minimax_h3_vae_size(shapes: Mapping[str, Shape]) -> MiniMaxH3VAESize:
    """Infer the size from shapes under the original's names. One half alone, encoder or decoder, is enough."""
    usual = MiniMaxH3VAESize()
    latents = dim(shapes, "encoder.conv_out.bias", 0, dim(shapes, "quant_conv.bias", 0, 2 * usual.latent_channels))
    own = dim(shapes, "post_quant_conv.bias", 0, dim(shapes, "decoder.x_embedder.weight", 1, max(1, latents // 2)))
    return read_size(
        usual,
        minimax_h3_vae_shapes,
        shapes,
        widths=_widths(shapes, usual),
        res_blocks=count(shapes, "encoder.down.0.block.", usual.res_blocks),
        latent_channels=own,
        layers=blocks(shapes, BLOCKS, usual.layers, _AROUND),
    )


def _widths(shapes: Mapping[str, Shape], usual: MiniMaxH3VAESize) -> tuple[int, ...]:
    """Return the channels of each level; where its first convolution is missing, the released model's."""
    names = (f"encoder.down.{level}.block.0.conv1" for level in range(LEVELS))
    return tuple(
        dim(shapes, f"{name}.weight", 0, dim(shapes, f"{name}.bias", 0, width))
        for name, width in zip(names, usual.widths, strict=True)
    )


def _head_by_head(tensor: StoredTensor, parts: tuple[int, int]) -> StoredTensor:
    """Reorder rows between (q, k, v) outside heads and inside them. parts: (3, heads) or (heads, 3); -1 for heads

    Rows are whole blocks, so packed types are reordered as bytes.
    """
    if tensor.shape[0] % (3 * HEAD_DIM):
        raise BadInput(f"{tensor.shape[0]} rows are no q, k and v of whole heads of {HEAD_DIM}")
    rows = np.arange(tensor.shape[0]).reshape(*parts, HEAD_DIM).swapaxes(0, 1).ravel()
    data = tensor.data.reshape(tensor.shape[0], -1)[rows]
    return tensor._replace(data=data.reshape(tensor.data.shape))


def _split_heads(tensor: StoredTensor, rows: Sequence[int]) -> list[StoredTensor]:
    plain = stored(tensor.values()) if tensor.scaling else tensor
    return CONCAT.split(_head_by_head(plain, (-1, 3)), rows)


# Our rows are q, k and v of the first head, then of the second; theirs are three tensors.
HEADS = Rule(CONCAT.shape, lambda parts: _head_by_head(CONCAT.join(parts), (3, -1)), _split_heads)

_ENDS = (
    *((name, name) for name in ("quant_conv", "post_quant_conv")),
    *((f"encoder.{name}", f"encoder.{name}") for name in ("conv_in", "norm_out", "conv_out")),
    *((f"decoder.{name}", f"decoder.{name}") for name in ("register_tokens", "norm_out", "proj_out")),
    ("decoder.x_embedder", "decoder.proj_in"),
)
_RES = (
    *((name, name) for name in ("norm1", "conv1", "norm2", "conv2")),
    ("nin_shortcut", "conv_shortcut"),
)
_BLOCK = (
    *((name, name) for name in ("norm1", "norm2", "scale1", "scale2")),
    ("attn.to_qkv", ("attn.to_q", "attn.to_k", "attn.to_v"), HEADS),
    ("attn.to_out", "attn.to_out.0"),
    ("ff.w1", "ff.net.0.proj", SWAP),
    ("ff.w2", "ff.net.2"),
)


def minimax_h3_vae_keymap(layers: int = 36, res_blocks: int = 2) -> Keymap:
    """Map MiniMax's names to and from diffusers', which splits q, k and v and has value before gate."""
    rows = prefix_rows(_ENDS) + block_rows(layers, BLOCKS[:-1], BLOCKS[:-1], _BLOCK)
    for level in range(LEVELS):
        ours, theirs = f"encoder.down.{level}", f"encoder.down_blocks.{level}"
        rows += block_rows(res_blocks, f"{ours}.block", f"{theirs}.resnets", _RES)
        rows += prefix_rows([(f"{ours}.downsample", f"{theirs}.downsamplers.0")])
    return Keymap(rows)


_FACTORS = {
    "spatial_downsample_factors": [2] * SAMPLED + [1] * (LEVELS - SAMPLED),
    "temporal_downsample_factors": [2 if level in HALVES else 1 for level in range(LEVELS)],
}
# What refsd computes; a config.json that says otherwise is refused.
_COMPUTED = {
    **_FACTORS,
    "clip_length": 17,
    "decoder_attention_head_dim": HEAD_DIM,
    "decoder_rope_dim_ratio": 0.75,
    "in_channels": 3,
    "norm_num_groups": 32,
    "out_channels": 3,
    "spatial_padding_mode": "reflect",
    "token_drop": 3,
}


def _config(size: MiniMaxH3VAESize) -> dict[str, Any]:
    return {
        "_class_name": "AutoencoderKLMiniMaxH3",
        **_COMPUTED,
        "block_out_channels": list(size.widths),
        "decoder_ffn_mult": size.mlp // size.hidden,
        "decoder_norm_eps": DECODER_EPS,
        "decoder_num_attention_heads": size.hidden // HEAD_DIM,
        "decoder_num_layers": size.layers,
        "decoder_num_register_tokens": size.registers,
        "decoder_rope_theta": THETA,
        "latent_channels": size.latent_channels,
        "latents_mean": list(LATENTS_MEAN),
        "latents_std": list(LATENTS_STD),
        "layers_per_block": size.res_blocks,
        "norm_eps": NORM_EPS,
    }


def _read_config(path: Path, shapes: Shapes, given: dict[str, Any]) -> dict[str, Any]:
    return {
        **statistics(path, minimax_h3_vae_size(shapes).latent_channels, given),
        "eps": positive(path, given, "norm_eps", NORM_EPS),
        "theta": positive(path, given, "decoder_rope_theta", THETA),
        "decoder_eps": positive(path, given, "decoder_norm_eps", DECODER_EPS),
    }


def _with_frames(shapes: Mapping[str, Shape]) -> bool:
    """True if the first convolution sees frames, where SD's of the same name sees one, or if a decoder is there."""
    return any(
        name.endswith(f"{BLOCKS}0.scale1") or (name.endswith("encoder.conv_in.weight") and len(shape) == 5)
        for name, shape in shapes.items()
    )


_PREFIXES = ("first_stage_model.", "vae.", "")
_DIFFUSERS = counted(
    "diffusers",
    minimax_h3_vae_keymap,
    {BLOCKS: 36, "encoder.down_blocks.0.resnets.": 2},
    lambda size: (size.layers, size.res_blocks),
)
_TINY = MiniMaxH3VAESize((32, 32, 64, 32, 32, 32), 1, hidden=128, layers=2, mlp=256)

MINIMAX_H3_VAE = Network(
    "minimax-h3-vae",
    "MiniMax-H3's video autoencoder",
    "autoencoder",
    minimax_h3_vae_size,
    minimax_h3_vae_shapes,
    places=(
        Location(same("original"), _PREFIXES, (f"{BLOCKS}0.attn.to_qkv.", "encoder.down.0."), shaped=_with_frames),
        Location(
            _DIFFUSERS,
            _PREFIXES,
            (f"{BLOCKS}0.attn.to_q.", "encoder.down_blocks.0.resnets.0.norm1.weight"),
            shaped=_with_frames,
        ),
    ),
    folder=Folder("vae", DIFFUSERS_FILE, _DIFFUSERS, _config),
    computed={field: (value,) for field, value in _COMPUTED.items()},
    config=_read_config,
    before=("vae", "flux2-vae"),
    unread=("decoder.mask_token", "decoder.pos_embed.inv_freq"),
    recipes={
        "minimax-h3-vae": alone("minimax-h3-vae", MiniMaxH3VAESize(), _TINY, "vae"),
        # In full width, because that is where kernels differ.
        "minimax-h3-vae-block": alone(
            "minimax-h3-vae", MiniMaxH3VAESize(layers=1), MiniMaxH3VAESize(layers=1), "vae"
        ),
    },
)
NETWORKS = (MINIMAX_H3_VAE,)
