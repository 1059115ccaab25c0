"""SD 2's and SDXL's ControlNets against diffusers, in float64: what they add, and the UNet to which it is added."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from diffusers import ControlNetModel
from diffusers.loaders.single_file_utils import convert_controlnet_checkpoint
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw
from test_models_sdxl import Config, deeper, is_block, peer_unet, read, unet_keymap_of
from test_models_unet import block_names

from refsd.models.controlnet import controlnet
from refsd.models.controlnet.network import controlnet_keymap as controlnet_keymap
from refsd.models.unet import size_condition, unet
from refsd.models.unet.tensors import UNetSize
from refsd.module import Module, Taps
from refsd.numerics.errors import BadInput

pytestmark = pytest.mark.peer


class Controlled(NamedTuple):
    """
    config:   of the UNet and, but for its decoder, of the ControlNet
    hint:     the hint's widths
    strength: the factor of what is added
    more:     what else diffusers' ControlNet is told
    """

    config: Config
    hint: tuple[int, ...]
    strength: float
    more: dict[str, Any] | None = None


CONFIGS = {
    "sd2": Controlled(
        Config(
            UNetSize(64, (64, 64, 128, 192), (0, 1, 2), 2, 48),
            [1] * 4,
            (16, 8),
            77,
            more={"upcast_attention": True},
        ),
        (16, 32, 96, 256),
        1.0,
        {"upcast_attention": True},
    ),
    "sd2-inpaint": Controlled(
        Config(UNetSize(64, (64, 128), (0, 1), 1, 24, 9), [1] * 2, (6, 10), 3), (5, 3, 8, 2), -1.7
    ),
    "sdxl": Controlled(
        Config(UNetSize(32, (32, 64, 128), (1, 2), 2, 40), [1, 2, 3], (12, 20), 77, 56, 6), (16, 32, 96, 256), 0.9
    ),
    "sdxl-one-res-block": Controlled(
        Config(UNetSize(64, (64, 192), (1,), 1, 33), [1, 2], (10, 6), 1, 24, 6), (4, 4, 6, 7), 1.0
    ),
    # As the small ControlNets for SDXL have it.
    "middle-without-attention": Controlled(
        Config(
            UNetSize(32, (32, 64, 128), (), 2, 40),
            [1, 1, 1],
            (8, 4),
            11,
            24,
            6,
            {"mid_block_type": "UNetMidBlock2D"},
        ),
        (4, 6, 5, 7),
        0.5,
        {"mid_block_type": "UNetMidBlock2D"},
    ),
}


def peer_controlnet(case: Controlled) -> ControlNetModel:
    config, size = case.config, case.config.size
    kind = {True: "CrossAttn", False: ""}
    widths = list(size.widths)
    label = {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": config.pooled + 256 * config.sizes,
    }
    arguments = {
        "in_channels": size.in_channels,
        "block_out_channels": widths,
        "down_block_types": [f"{kind[i in size.attention]}DownBlock2D" for i in range(len(widths))],
        "layers_per_block": size.res_blocks,
        "cross_attention_dim": size.context_dim,
        "attention_head_dim": [max(1, width // 64) for width in widths],  # theirs is the number of heads
        "transformer_layers_per_block": config.depth,
        "use_linear_projection": True,
        "conditioning_embedding_out_channels": case.hint,
    }
    return ControlNetModel(**arguments | (label if config.pooled else {}) | (case.more or {}))


def keymap_of(size: UNetSize):
    return controlnet_keymap(len(size.widths), size.res_blocks)


@pytest.mark.parametrize("name", CONFIGS)
def test_control_every_block_and_the_controlled_unet(name):
    case = CONFIGS[name]
    config, size = case.config, case.config.size
    H, W = config.hw
    x, context = draw((2, size.in_channels, H, W), 2), draw((2, config.tokens, size.context_dim), 3)
    hint, timesteps = np.abs(draw((2, 3, 8 * H, 8 * W), 5)), np.array([981.25, 1.5])
    with float64_throughout():
        peer, denoiser = peer_controlnet(case), peer_unet(config)
        redraw(peer, 1)
        redraw(denoiser, 6)
        m = Module(read(keymap_of(size), peer.state_dict()))
        base = Module(read(unet_keymap_of(size), denoiser.state_dict()))
        given = torch.from_numpy(x), torch.from_numpy(timesteps), torch.from_numpy(context)
        y = added = None
        if config.pooled:
            pooled = draw((2, config.pooled), 4)
            sizes = np.array([[1024.0, 768, 0, 13, 512, 1001], [33, 4096, 250, 8, 640, 2.5]])
            y = size_condition(m, pooled, sizes)
            added = {"text_embeds": torch.from_numpy(pooled), "time_ids": torch.from_numpy(sizes)}
        with outputs_of(peer) as theirs:
            want = peer(*given, torch.from_numpy(hint), conditioning_scale=case.strength, added_cond_kwargs=added)
        want_eps = denoiser(
            *given,
            added_cond_kwargs=added,
            down_block_additional_residuals=want.down_block_res_samples,
            mid_block_additional_residual=want.mid_block_res_sample,
        ).sample
    m.taps = Taps()
    control = controlnet(m, x, hint, timesteps, context, strength=case.strength, y=y)
    wanted = (*want.down_block_res_samples, want.mid_block_res_sample)
    assert len(control) == len(wanted)
    for got, residual in zip(control, wanted, strict=True):
        assert distance(got, residual) <= 1e-12
    names = block_names(size) | {"controlnet_cond_embedding": "input_hint_block"}
    blocks = deeper(names, theirs)
    assert blocks.keys() >= {at for at in theirs if is_block(at) and not at.startswith("controlnet_")}
    for theirs_at, ours_at in blocks.items():
        tap = m.taps[ours_at]
        assert distance(tap.reshape(theirs[theirs_at].shape), theirs[theirs_at]) <= 1e-12, ours_at
    eps = unet(base, x, timesteps, context, y=y, control=control)
    assert distance(eps, want_eps) <= 1e-12


@pytest.mark.parametrize("name", CONFIGS)
def test_the_names_are_those_that_diffusers_reads_from_a_single_file(name):
    case = CONFIGS[name]
    size = case.config.size
    peer = peer_controlnet(case)
    redraw(peer, 1)
    state = peer.state_dict()
    weights = read(keymap_of(size), state)
    written = keymap_of(size).write(weights)
    assert written.keys() == state.keys()
    for name, tensor in state.items():
        np.testing.assert_array_equal(written[name].values(), tensor.numpy())
    original = {f"control_model.{name}": torch.from_numpy(w.values()) for name, w in weights.items()}
    back = convert_controlnet_checkpoint(original, dict(peer.config))
    for name, tensor in back.items():
        assert torch.equal(tensor, state[name]), name
    # diffusers' own reading leaves out what SDXL adds to SD's.
    assert {name.split(".")[0] for name in state.keys() - back.keys()} <= {"add_embedding"}


def test_a_label_that_is_missing_or_too_many_is_an_error():
    case = CONFIGS["sdxl-one-res-block"]
    weights = read(keymap_of(case.config.size), peer_controlnet(case).state_dict())
    given = draw((1, 4, 2, 2), 2), draw((1, 3, 16, 16), 3), np.ones(1), draw((1, 1, 33), 4)
    with pytest.raises(BadInput, match="y is missing"):
        controlnet(Module(weights), *given)
    plain = {name: w for name, w in weights.items() if not name.startswith("label_emb")}
    with pytest.raises(BadInput, match="y is given"):
        controlnet(Module(plain), *given, y=draw((1, 24 + 6 * 256), 5))
