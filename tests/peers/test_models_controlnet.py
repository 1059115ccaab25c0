"""ControlNet against diffusers, in float64: what it adds, and the UNet to which it is added."""

import numpy as np
import pytest
import torch
from diffusers import ControlNetModel
from diffusers.loaders.single_file_utils import convert_controlnet_checkpoint
from float64_peers import distance, draw, draw_weights, float64_throughout, outputs_of
from test_models_unet import load as load_unet
from test_models_unet import peer_unet
from tiny_side_models import controlnet_shapes

from refsd.models.controlnet import controlnet
from refsd.models.controlnet.network import controlnet_keymap
from refsd.models.unet import unet
from refsd.models.unet.tensors import UNetSize, unet_shapes
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# A size, the heads, the groups, the hint's widths, (H, W) of the latent, tokens, the strength.
CONFIGS = {
    "sd15": (UNetSize(32, (32, 64, 128, 128), context_dim=40), 8, 32, (16, 32, 96, 256), (8, 16), 77, 1.0),
    "two-levels": (UNetSize(32, (32, 96), (1,), 1, 24, 9, 5), 4, 32, (5, 3, 8, 2), (10, 6), 1, 0.9),
    "odd-levels": (UNetSize(48, (48, 96, 96), (0, 2), 3, 33), 3, 16, (4, 4, 6, 7), (12, 4), 154, -1.7),
    "odd-sizes": (UNetSize(32, (32, 64, 64, 64), context_dim=24), 4, 32, (4, 4, 6, 7), (9, 13), 5, 0.8),
}


def peer_controlnet(size: UNetSize, num_heads: int, num_groups: int, hint: tuple[int, ...]) -> ControlNetModel:
    kind = {True: "CrossAttn", False: ""}
    return ControlNetModel(
        in_channels=size.in_channels,
        block_out_channels=list(size.widths),
        down_block_types=[f"{kind[i in size.attention]}DownBlock2D" for i in range(len(size.widths))],
        layers_per_block=size.res_blocks,
        cross_attention_dim=size.context_dim,
        attention_head_dim=num_heads,
        norm_num_groups=num_groups,
        conditioning_embedding_out_channels=hint,
    )


def load(peer: ControlNetModel, weights: dict[str, np.ndarray]) -> None:
    """Through diffusers' own reading of the original key names."""
    checkpoint = {f"control_model.{name}": torch.from_numpy(w) for name, w in weights.items()}
    peer.load_state_dict(convert_controlnet_checkpoint(checkpoint, peer.config))


@pytest.mark.parametrize("name", CONFIGS)
def test_control_and_the_controlled_unet(name):
    size, num_heads, num_groups, hint_widths, (H, W), tokens, strength = CONFIGS[name]
    weights = draw_weights(controlnet_shapes(size, hint_widths), seed=1)
    base = draw_weights(unet_shapes(size), seed=2)
    x, context = draw((2, size.in_channels, H, W), 3), draw((2, tokens, size.context_dim), 4)
    hint, timesteps = np.abs(draw((2, 3, 8 * H, 8 * W), 5)), (981.25, 1.5)
    given = torch.from_numpy(x), torch.tensor(timesteps, dtype=torch.float64), torch.from_numpy(context)
    with float64_throughout():
        peer = peer_controlnet(size, num_heads, num_groups, hint_widths)
        load(peer, weights)
        with outputs_of(peer) as theirs:
            want = peer(*given, torch.from_numpy(hint), conditioning_scale=strength)
        denoiser = peer_unet(size, num_heads, num_groups)
        load_unet(denoiser, base)
        want_eps = denoiser(
            *given,
            down_block_additional_residuals=want.down_block_res_samples,
            mid_block_additional_residual=want.mid_block_res_sample,
        ).sample
    m = Module({f"control_model.{name}": stored(w) for name, w in weights.items()}, taps=Taps())
    params = {"num_heads": num_heads, "num_groups": num_groups}
    t = np.array(timesteps)
    control = controlnet(m["control_model"], x, hint, t, context, **params, strength=strength)
    wanted = (*want.down_block_res_samples, want.mid_block_res_sample)
    assert len(control) == len(wanted)
    for got, residual in zip(control, wanted, strict=True):
        assert distance(got, residual) <= 1e-12
    for ours, at in {
        "input_hint_block": "controlnet_cond_embedding",
        "input_blocks.0": "conv_in",
        "input_blocks.1.0": "down_blocks.0.resnets.0",
        "middle_block.1": "mid_block.attentions.0",
        "middle_block": "mid_block",
        "zero_convs.1": "controlnet_down_blocks.1",
    }.items():
        assert distance(m.taps[f"control_model.{ours}"], theirs[at]) <= 1e-12, ours
    eps = unet(Module({name: stored(w) for name, w in base.items()}), x, t, context, **params, control=control)
    assert distance(eps, want_eps) <= 1e-12


@pytest.mark.parametrize("name", CONFIGS)
def test_the_keymap_reads_what_diffusers_converted(name):
    size, num_heads, num_groups, hint_widths, *_ = CONFIGS[name]
    weights = draw_weights(controlnet_shapes(size, hint_widths), seed=6)
    peer = peer_controlnet(size, num_heads, num_groups, hint_widths).double()
    load(peer, weights)
    there = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    keymap = controlnet_keymap(len(size.widths), size.res_blocks)
    sources, unread = keymap.sources(there)
    assert not unread
    assert set(sources) == set(weights)
    for name, source in sources.items():
        np.testing.assert_array_equal(source.read(there).values(), weights[name])
    assert set(keymap.write({name: stored(w) for name, w in weights.items()})) == set(there)
