"""The whole of FLUX.1 against diffusers, in float64."""

import numpy as np
import pytest
import torch
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.models.flux import flux
from refsd.models.flux.network import flux_keymap
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

CONFIGS = {
    "dev": {"heads": 2, "axes": (4, 6, 6), "txt": 7, "hw": (6, 10), "guidance": True},
    "schnell, real axes": {"heads": 1, "axes": (16, 56, 56), "txt": 1, "hw": (2, 6), "guidance": False},
    "fill": {"heads": 3, "axes": (2, 4, 2), "txt": 5, "hw": (10, 4), "guidance": True, "condition": 20},
    "kontext": {"heads": 2, "axes": (4, 2, 2), "txt": 3, "hw": (4, 6), "guidance": True, "reference": (6, 2)},
}
C, E, V = 4, 11, 13


def peer_flux(heads, axes, guidance, channels=C, doubles=2, singles=3):
    return FluxTransformer2DModel(
        in_channels=4 * channels,
        out_channels=4 * C,
        num_layers=doubles,
        num_single_layers=singles,
        attention_head_dim=sum(axes),
        num_attention_heads=heads,
        joint_attention_dim=E,
        pooled_projection_dim=V,
        guidance_embeds=guidance,
        axes_dims_rope=axes,
    )


def weights_of(peer, keymap):
    """The peer's parameters under the original names."""
    there = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    sources, unread = keymap.sources(there)
    assert not unread
    return {name: source.read(there) for name, source in sources.items()}


def packed(x):
    return FluxPipeline._pack_latents(torch.from_numpy(x), *x.shape)


def image_ids(H, W):
    return FluxPipeline._prepare_latent_image_ids(None, H // 2, W // 2, None, torch.float64)


@pytest.mark.parametrize("name", CONFIGS)
def test_flux(name):
    config = CONFIGS[name]
    H, W = config["hw"]
    channels = C + config.get("condition", 0)
    x, context, y = draw((2, channels, H, W), 1), draw((2, config["txt"], E), 2), draw((2, V), 3)
    t, guidance = np.array([0.98125, 0.0317]), np.array([3.5, 1.25])
    with float64_throughout():
        peer = peer_flux(config["heads"], config["axes"], config["guidance"], channels)
        redraw(peer, 4)
        tokens, ids = packed(x), image_ids(H, W)
        reference = None
        if "reference" in config:
            reference = draw((2, C, *config["reference"]), 5)
            there = image_ids(*config["reference"])
            there[:, 0] = 1
            tokens, ids = torch.cat([tokens, packed(reference)], dim=1), torch.cat([ids, there])
        with outputs_of(peer) as outputs:
            want = peer(
                tokens,
                torch.from_numpy(context),
                torch.from_numpy(y),
                torch.from_numpy(t),
                ids,
                torch.zeros(config["txt"], 3),
                torch.from_numpy(guidance) if config["guidance"] else None,
            ).sample
        # The pipeline counts in pixels, eight to a latent's.
        want = FluxPipeline._unpack_latents(want[:, : H * W // 4], 8 * H, 8 * W, 8)

    taps = Taps()
    m = Module(weights_of(peer, flux_keymap(2, 3)), taps=taps)
    got = flux(m, x, t, context, y, guidance if config["guidance"] else None, reference, config["axes"])
    assert distance(got, want) <= 1e-12
    for i in range(2):
        # Of a block's pair, diffusers gives the text first.
        assert distance(taps[f"double_blocks.{i}.1"], outputs[f"transformer_blocks.{i}"]) <= 1e-12
    for i in range(3):
        text = taps[f"single_blocks.{i}"][:, : config["txt"]]
        assert distance(text, outputs[f"single_transformer_blocks.{i}"]) <= 1e-12
    assert distance(taps["time_in"], outputs["time_text_embed.timestep_embedder"]) <= 1e-12
    assert distance(taps["vector_in"], outputs["time_text_embed.text_embedder"]) <= 1e-12
