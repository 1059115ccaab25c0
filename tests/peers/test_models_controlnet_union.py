"""ControlNet Union against diffusers in float64: what it adds, its names, and a picture of SDXL's."""

import numpy as np
import pytest
import torch
from diffusers import ControlNetUnionModel, StableDiffusionXLControlNetUnionPipeline
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw
from test_models_controlnet_sdxl import keymap_of
from test_models_sdxl import Config, read
from test_pictures import _lifted  # noqa: F401
from test_pictures_given import PICTURE, H, W, unet_settings
from test_pictures_given import _lifted as _draws_in_float64  # noqa: F401
from test_pictures_sdxl import SIZE, sdxl_case

from refsd.models.controlnet import controlnet
from refsd.models.controlnet.network import controlnet_size
from refsd.models.controlnet.union import KINDS
from refsd.models.unet import size_condition
from refsd.models.unet.tensors import UNetSize
from refsd.module import Module, Taps
from refsd.pipelines.conditioning_images import ConditioningImages

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

# Config, the hint's widths, kinds, the kind that is given, the strength
CONFIGS = {
    "sdxl": (
        Config(UNetSize(32, (32, 64, 128), (1, 2), 2, 40), [1, 2, 3], (12, 20), 77, 56, 6),
        (16, 32, 96, 256),
        6,
        3,
        0.9,
    ),
    "promax": (Config(UNetSize(64, (64, 192), (1,), 1, 33), [1, 2], (10, 6), 1, 24, 6), (4, 4, 6, 7), 8, 7, -1.7),
    "without a label": (
        Config(UNetSize(64, (64, 128), (0, 1), 1, 24), [1] * 2, (6, 10), 3),
        (5, 3, 8, 2),
        6,
        0,
        1.0,
    ),
}


def peer_union(config, hint, kinds):
    size = config.size
    label = {
        "addition_embed_type": "text_time",
        "projection_class_embeddings_input_dim": config.pooled + 256 * config.sizes,
    }
    return ControlNetUnionModel(
        in_channels=size.in_channels,
        block_out_channels=list(size.widths),
        down_block_types=[
            f"{'CrossAttn' if i in size.attention else ''}DownBlock2D" for i in range(len(size.widths))
        ],
        layers_per_block=size.res_blocks,
        cross_attention_dim=size.context_dim,
        attention_head_dim=[max(1, width // 64) for width in size.widths],  # theirs is the number of heads
        transformer_layers_per_block=config.depth,
        use_linear_projection=True,
        conditioning_embedding_out_channels=hint,
        addition_time_embed_dim=256,
        num_control_type=kinds,
        num_trans_channel=size.channels,
        num_proj_channel=size.channels,
        **(label if config.pooled else {}),
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_what_it_adds(name):
    config, widths, kinds, kind, strength = CONFIGS[name]
    size, (high, wide) = config.size, config.hw
    x, context = draw((2, size.in_channels, high, wide), 2), draw((2, config.tokens, size.context_dim), 3)
    hint, timesteps = np.abs(draw((2, 3, 8 * high, 8 * wide), 5)), np.array([981.25, 1.5])
    marks = torch.zeros(2, kinds, dtype=torch.float64)
    marks[:, kind] = 1
    y = added = None
    with float64_throughout():
        peer = peer_union(config, widths, kinds)
        redraw(peer, 1)
        m = Module(read(keymap_of(size), peer.state_dict()))
        if config.pooled:
            pooled = draw((2, config.pooled), 4)
            sizes = np.array([[1024.0, 768, 0, 13, 512, 1001], [33, 4096, 250, 8, 640, 2.5]])
            y = size_condition(m, pooled, sizes)
            added = {"text_embeds": torch.from_numpy(pooled), "time_ids": torch.from_numpy(sizes)}
        with outputs_of(peer) as theirs:
            want = peer(
                *map(torch.from_numpy, (x, timesteps, context)),
                [torch.from_numpy(hint)],
                marks,
                [kind],
                conditioning_scale=strength,
                added_cond_kwargs=added,
            )
    m.taps = Taps()
    control = controlnet(m, x, hint, timesteps, context, strength=strength, y=y, control_type=kind)
    wanted = (*want.down_block_res_samples, want.mid_block_res_sample)
    assert len(control) == len(wanted)
    for got, residual in zip(control, wanted, strict=True):
        assert distance(got, residual) <= 1e-12
    layer = "transformer_layes.0"
    assert distance(m.taps[layer], theirs[layer]) <= 1e-12
    other = controlnet(m, x, hint, timesteps, context, strength=strength, y=y, control_type=(kind + 1) % kinds)
    assert distance(other[0], wanted[0]) > 1e-3
    found = controlnet_size({name: weight.shape for name, weight in m.weights.items()})
    assert (found.hint, found.kinds) == (widths, kinds)


def test_the_names_are_theirs():
    config, widths, kinds, *_ = CONFIGS["promax"]
    state = peer_union(config, widths, kinds).state_dict()
    written = keymap_of(config.size).write(read(keymap_of(config.size), state))
    assert written.keys() == state.keys()
    for name, tensor in state.items():
        np.testing.assert_array_equal(written[name].values(), tensor.numpy())


@pytest.mark.parametrize("kind", ["canny", "repaint"])
def test_a_picture(tmp_path, kind):
    """Their pipeline is told the kind's number."""
    settings = unet_settings(3, 0.75)._replace(control_strength=0.7, control_type=kind)
    with float64_throughout():
        config = Config(SIZE, [1, 2], (H, W), 7, 56, 6)
        beside = {"controlnet": peer_union(config, (4, 4, 6, 7), 8)}
    images = ConditioningImages(control=PICTURE)
    sdxl_case(
        tmp_path, StableDiffusionXLControlNetUnionPipeline, settings, images, beside=beside,
        control_image=[torch.from_numpy(PICTURE)], control_mode=[KINDS.index(kind)],
        controlnet_conditioning_scale=0.7, height=H, width=W,
    )  # fmt: skip
