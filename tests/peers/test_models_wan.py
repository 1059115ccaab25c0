"""Wan's transformer against diffusers, in float64: the output, and what every block gives on the way."""

import numpy as np
import pytest
import torch
from diffusers import WanTransformer3DModel
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw
from test_models_zimage import weights_of

from refsd.models.wan import wan
from refsd.models.wan.network import WAN_1_3B, WAN_14B, wan_keymap, wan_shapes
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

CONTEXT = 40
# Real heads; a video of three frames; a picture; image to video's further channels. H != W, odd texts.
CONFIGS = {
    "real-head": {"heads": 2, "axes": (44, 42, 42), "size": (16, 3, 6, 10), "tokens": 7, "layers": 2},
    "picture": {"heads": 3, "axes": (8, 4, 4), "size": (4, 1, 10, 14), "tokens": 37, "layers": 2},
    "image-to-video": {"heads": 1, "axes": (8, 4, 4), "size": (9, 2, 2, 6), "tokens": 1, "layers": 1},
}


def peer_wan(heads, axes, channels, layers, context=CONTEXT, mlp=56, out=4) -> WanTransformer3DModel:
    return WanTransformer3DModel(
        num_attention_heads=heads,
        attention_head_dim=sum(axes),
        in_channels=channels,
        out_channels=out,
        text_dim=context,
        ffn_dim=mlp,
        num_layers=layers,
        rope_max_seq_len=32,
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_the_output_and_every_block(name):
    config = CONFIGS[name]
    x, context = draw((2, *config["size"]), 1), draw((2, config["tokens"], CONTEXT), 3)
    t = np.array([31.25, 987.5])
    with float64_throughout():
        peer = peer_wan(config["heads"], config["axes"], config["size"][0], config["layers"])
        redraw(peer, 2)
        with outputs_of(peer) as theirs:
            want = peer(*(torch.from_numpy(array) for array in (x, t, context))).sample
    taps = Taps()
    weights = weights_of(peer, wan_keymap(config["layers"]))
    got = wan(Module(weights, taps=taps), x, t, context, axes_dim=config["axes"])
    assert distance(got, want) <= 1e-12
    assert distance(taps["time_embedding"], theirs["condition_embedder.time_embedder"]) <= 1e-12
    assert distance(taps["text_embedding"], theirs["condition_embedder.text_embedder"]) <= 1e-12
    for i in range(config["layers"]):
        for ours, there in (("", ""), (".self_attn", ".attn1"), (".cross_attn", ".attn2"), (".ffn", ".ffn")):
            assert distance(taps[f"blocks.{i}{ours}"], theirs[f"blocks.{i}{there}"]) <= 1e-12, (i, ours)


@pytest.mark.parametrize("size", [WAN_14B, WAN_1_3B])
def test_the_names_are_those_of_single_files(size):
    """diffusers' own conversion makes of our names those that its class has."""
    small = size._replace(hidden=8, mlp=8, context_dim=8)
    there = {name: torch.zeros(shape) for name, shape in wan_shapes(small).items()}
    converted = convert_wan_transformer_to_diffusers(there)
    with torch.device("meta"):
        heads = size.hidden // 128
        peer = WanTransformer3DModel(ffn_dim=size.mlp, num_layers=size.layers, num_attention_heads=heads)
    assert converted.keys() == peer.state_dict().keys()
    ours = {name: stored(np.zeros(shape, np.float32)) for name, shape in wan_shapes(small).items()}
    assert wan_keymap(size.layers).write(ours).keys() == converted.keys()
    full = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    keymap = wan_keymap(size.layers)
    assert {keymap.theirs(name).names[0]: shape for name, shape in wan_shapes(size).items()} == full
