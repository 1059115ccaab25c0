"""Chroma against diffusers, in float64."""

import numpy as np
import pytest
import torch
from diffusers.models.transformers.transformer_chroma import ChromaTransformer2DModel
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw
from test_models_flux_whole import C, E, image_ids, packed, weights_of
from test_models_flux_whole import FluxPipeline as Pipeline

from refsd.models.chroma import chroma, seen
from refsd.models.chroma.network import chroma_keymap
from refsd.module import Module, Taps

# diffusers imports its own FluxPosEmbed from where it deprecates it.
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings("ignore:.FluxPosEmbed. is deprecated:FutureWarning")]

CONFIGS = {
    "tiny": {"heads": 2, "axes": (4, 6, 6), "txt": 7, "hw": (6, 10), "mask": None},
    "real axes": {"heads": 1, "axes": (16, 56, 56), "txt": 5, "hw": (2, 6), "mask": [4, 1]},
    "padded": {"heads": 3, "axes": (2, 4, 2), "txt": 9, "hw": (10, 4), "mask": [3, 9]},
}


def peer_chroma(heads, axes, doubles=2, singles=3, channels=C, context=E):
    peer = ChromaTransformer2DModel(
        in_channels=4 * channels,
        num_layers=doubles,
        num_single_layers=singles,
        attention_head_dim=sum(axes),
        num_attention_heads=heads,
        joint_attention_dim=context,
        axes_dims_rope=axes,
        approximator_num_channels=64,
        approximator_hidden_dim=24,
        approximator_layers=2,
    )
    # torch's RMSNorm takes the dtype's own epsilon when given none; the original has 1e-6.
    for norm in peer.distilled_guidance_layer.norms:
        norm.eps = 1e-6
    return peer


@pytest.mark.parametrize("name", CONFIGS)
def test_chroma(name):
    config = CONFIGS[name]
    (H, W), J = config["hw"], config["txt"]
    x, context, t = draw((2, C, H, W), 1), draw((2, J, E), 2), np.array([0.98125, 0.0317])
    mask, bools = None, None
    if config["mask"]:
        mask = seen(np.arange(J) < np.array(config["mask"])[:, None])
        bools = torch.from_numpy(np.concatenate([mask, np.ones((2, H * W // 4), bool)], axis=1))
    with float64_throughout():
        peer = peer_chroma(config["heads"], config["axes"])
        redraw(peer, 4)
        with outputs_of(peer) as outputs:
            want = peer(
                packed(x),
                torch.from_numpy(context),
                torch.from_numpy(t),
                image_ids(H, W),
                torch.zeros(J, 3),
                bools,
            ).sample
        want = Pipeline._unpack_latents(want, 8 * H, 8 * W, 8)

    taps = Taps()
    got = chroma(Module(weights_of(peer, chroma_keymap(2, 3, 2)), taps=taps), x, t, context, mask, config["axes"])
    assert distance(got, want) <= 1e-12
    modulation = taps["distilled_guidance_layer"].swapaxes(0, 1)
    assert distance(modulation, outputs["distilled_guidance_layer"]) <= 1e-12
    for i in range(2):
        # Of a block's pair, diffusers gives the text first.
        assert distance(taps[f"double_blocks.{i}.1"], outputs[f"transformer_blocks.{i}"]) <= 1e-12
    for i in range(3):
        assert distance(taps[f"single_blocks.{i}"], outputs[f"single_transformer_blocks.{i}"]) <= 1e-12
