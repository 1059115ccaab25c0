"""AutoencoderKL against diffusers, in float64: both ways, and what every block gives."""

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL
from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint
from float64_peers import distance, draw, draw_weights, float64_throughout, outputs_of

from refsd.models.vae import decode, encode
from refsd.models.vae.network import VAESize, vae_shapes
from refsd.module import Module, Taps
from refsd.networks.dimensions import Shapes
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

QUANT, ATTENTION = ("quant_conv.", "post_quant_conv."), ("encoder.mid.attn_1.", "decoder.mid.attn_1.")

# A size, the groups, (H, W) of the latent, what the checkpoint lacks, rows and columns beyond a multiple of 8.
CONFIGS = {
    "sd15": (VAESize(32, (32, 64, 128, 128)), 32, (3, 5), (), (0, 0)),
    "two-levels": (VAESize(64, (64, 128), 1, 3), 32, (6, 4), (), (1, 0)),
    "sixteen-latents": (VAESize(24, (24, 48, 72), 3, 16), 8, (1, 7), (), (2, 3)),
    "flux": (VAESize(32, (32, 64, 128, 128), latent_channels=16), 32, (3, 2), QUANT, (0, 0)),
    "flux, odd": (VAESize(32, (32, 64, 128, 128), latent_channels=16), 16, (2, 3), QUANT, (5, 7)),
    "no attention": (VAESize(32, (32, 64), 2, 4), 32, (3, 4), ATTENTION, (1, 1)),
    "neither": (VAESize(32, (32, 64), 1, 16), 32, (2, 5), QUANT + ATTENTION, (0, 1)),
}


def shapes_without(size: VAESize, without: tuple[str, ...]) -> Shapes:
    return {name: shape for name, shape in vae_shapes(size).items() if not name.startswith(without or ("-",))}


def peer_vae(size: VAESize, num_groups: int, without: tuple[str, ...] = (), **config) -> AutoencoderKL:
    levels = len(size.widths)
    return AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * levels,
        up_block_types=["UpDecoderBlock2D"] * levels,
        block_out_channels=list(size.widths),
        layers_per_block=size.res_blocks,
        latent_channels=size.latent_channels,
        norm_num_groups=num_groups,
        use_quant_conv=QUANT[0] not in without,
        use_post_quant_conv=QUANT[1] not in without,
        mid_block_add_attention=ATTENTION[0] not in without,
        **config,
    )


def load(peer: AutoencoderKL, weights: dict[str, np.ndarray]) -> None:
    """Through diffusers' own reading of the original key names."""
    checkpoint = {f"first_stage_model.{name}": torch.from_numpy(w) for name, w in weights.items()}
    peer.load_state_dict(convert_ldm_vae_checkpoint(checkpoint, peer.config))


def block_names(size: VAESize, half: str, attends: bool = True) -> dict[str, str]:
    """diffusers' name of each block -> the original's; `up` counts from the picture's side there."""
    last = len(size.widths) - 1
    names = {half: half, f"{half}.mid_block": f"{half}.mid"}
    if attends:
        names[f"{half}.mid_block.attentions.0"] = f"{half}.mid.attn_1"
    for i in (0, 1):
        names[f"{half}.mid_block.resnets.{i}"] = f"{half}.mid.block_{i + 1}"
    for level in range(last + 1):
        ours = f"encoder.down.{level}" if half == "encoder" else f"decoder.up.{last - level}"
        theirs = f"encoder.down_blocks.{level}" if half == "encoder" else f"decoder.up_blocks.{level}"
        names[theirs] = ours
        for i in range(size.res_blocks + (half == "decoder")):
            names[f"{theirs}.resnets.{i}"] = f"{ours}.block.{i}"
    return names


def assert_blocks_agree(taps, theirs, names):
    for theirs_at, ours_at in names.items():
        assert distance(taps[ours_at], theirs[theirs_at]) <= 1e-12, ours_at


@pytest.mark.parametrize("name", CONFIGS)
def test_encode_decode_and_every_block(name):
    size, num_groups, (H, W), without, (rows, columns) = CONFIGS[name]
    attends = ATTENTION[0] not in without
    weights = draw_weights(shapes_without(size, without), seed=1)
    m = Module({name: stored(w) for name, w in weights.items()})
    factor = 2 ** (len(size.widths) - 1)
    x = draw((2, 3, H * factor + rows, W * factor + columns), 2)
    z = draw((2, size.latent_channels, H, W), 3)
    with float64_throughout():
        peer = peer_vae(size, num_groups, without)
        load(peer, weights)
        with outputs_of(peer) as theirs:
            posterior = peer.encode(torch.from_numpy(x)).latent_dist
        m.taps = Taps()
        mean, logvar = encode(m, x, num_groups)
        assert mean.shape == z.shape
        assert distance(mean, posterior.mean) <= 1e-12
        assert distance(np.clip(logvar, -30, 20), posterior.logvar) <= 1e-12
        assert_blocks_agree(m.taps, theirs, block_names(size, "encoder", attends))

        with outputs_of(peer) as theirs:
            want = peer.decode(torch.from_numpy(z)).sample
        m.taps = Taps()
        assert distance(decode(m, z, num_groups), want) <= 1e-12
        assert_blocks_agree(m.taps, theirs, block_names(size, "decoder", attends))
