"""The UNet against diffusers, in float64: the output, and what every block gives on the way."""

import numpy as np
import pytest
import torch
from diffusers import UNet2DConditionModel
from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint
from float64_peers import distance, draw, draw_weights, float64_throughout, outputs_of

from refsd.models.unet import unet
from refsd.models.unet.tensors import UNetSize, unet_shapes
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# A size, the heads, the groups, (H, W), tokens.
CONFIGS = {
    "sd15": (UNetSize(32, (32, 64, 128, 128), context_dim=40), 8, 32, (24, 40), 77),
    "two-levels": (UNetSize(32, (32, 96), (1,), 1, 24, 9, 5), 4, 32, (10, 6), 1),
    "odd-levels": (UNetSize(48, (48, 96, 96), (0, 2), 3, 33), 3, 16, (12, 20), 154),
    "odd-sizes": (UNetSize(32, (32, 64, 64, 64), context_dim=24), 4, 32, (9, 13), 5),
    "one-level": (UNetSize(64, (64,), (), 2, 8), 1, 32, (7, 5), 3),
}
TIMESTEPS = [(999.0, 1.0), (0.0, 500.5), (17.25, 981.125)]


def peer_unet(size: UNetSize, num_heads: int, num_groups: int) -> UNet2DConditionModel:
    levels = range(len(size.widths))
    kind = {True: "CrossAttn", False: ""}
    return UNet2DConditionModel(
        in_channels=size.in_channels,
        out_channels=size.out_channels,
        block_out_channels=list(size.widths),
        down_block_types=[f"{kind[i in size.attention]}DownBlock2D" for i in levels],
        up_block_types=[f"{kind[i in size.attention]}UpBlock2D" for i in reversed(levels)],
        layers_per_block=size.res_blocks,
        cross_attention_dim=size.context_dim,
        attention_head_dim=num_heads,
        norm_num_groups=num_groups,
    )


def load(peer: UNet2DConditionModel, weights: dict[str, np.ndarray]) -> None:
    """Through diffusers' own reading of the original key names."""
    checkpoint = {f"model.diffusion_model.{name}": torch.from_numpy(w) for name, w in weights.items()}
    peer.load_state_dict(convert_ldm_unet_checkpoint(checkpoint, peer.config))


def block_names(size: UNetSize) -> dict[str, str]:
    """diffusers' name of each block -> the original's."""
    names = {"conv_in": "input_blocks.0", "mid_block": "middle_block"}

    def layers(theirs, i, ours, attends):
        names[f"{theirs}.resnets.{i}"] = f"{ours}.0"
        if attends:
            transformer(f"{theirs}.attentions.{i}", f"{ours}.1")

    def transformer(theirs, ours):
        names[theirs] = ours
        for part in ("", ".attn1", ".attn2", ".ff"):
            names[f"{theirs}.transformer_blocks.0{part}"] = f"{ours}.transformer_blocks.0{part}"

    n = 1
    last = len(size.widths) - 1
    for level in range(last + 1):
        for i in range(size.res_blocks):
            layers(f"down_blocks.{level}", i, f"input_blocks.{n}", level in size.attention)
            n += 1
        if level != last:
            names[f"down_blocks.{level}.downsamplers.0"] = f"input_blocks.{n}"
            n += 1
    names |= {"mid_block.resnets.0": "middle_block.0", "mid_block.resnets.1": "middle_block.2"}
    transformer("mid_block.attentions.0", "middle_block.1")
    for up in range(last + 1):
        attends = last - up in size.attention
        for i in range(size.res_blocks + 1):
            n = up * (size.res_blocks + 1) + i
            layers(f"up_blocks.{up}", i, f"output_blocks.{n}", attends)
        if up != last:
            names[f"up_blocks.{up}.upsamplers.0"] = f"output_blocks.{n}.{1 + attends}"
    return names


@pytest.mark.parametrize("name", CONFIGS)
def test_unet_and_every_block(name):
    size, num_heads, num_groups, (H, W), tokens = CONFIGS[name]
    weights = draw_weights(unet_shapes(size), seed=1)
    m = Module({name: stored(w) for name, w in weights.items()})
    x, context = draw((2, size.in_channels, H, W), 2), draw((2, tokens, size.context_dim), 3)
    with float64_throughout():
        peer = peer_unet(size, num_heads, num_groups)
        load(peer, weights)
        for timesteps in TIMESTEPS:
            with outputs_of(peer) as theirs:
                want = peer(torch.from_numpy(x), torch.tensor(timesteps), torch.from_numpy(context)).sample
            m.taps = Taps()
            got = unet(m, x, np.array(timesteps), context, num_heads, num_groups)
            assert distance(got, want) <= 1e-12
            for theirs_at, ours_at in block_names(size).items():
                tap = m.taps[ours_at]
                assert distance(tap.reshape(theirs[theirs_at].shape), theirs[theirs_at]) <= 1e-12, ours_at
