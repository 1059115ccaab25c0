"""Anima's transformer against diffusers' Cosmos, in float64: the output, and what every block gives on the way."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import CosmosTransformer3DModel
from diffusers.loaders.single_file_utils import convert_cosmos_transformer_checkpoint_to_diffusers
from diffusers.models.transformers import transformer_cosmos
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.models.anima import anima
from refsd.models.anima.network import ANIMA, anima_keymap, anima_shapes, anima_size
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# heads, channels of a head, NTK scales of the axes
CONFIGS = {"real-head": (2, 128, (1.0, 4.0, 4.0)), "narrow": (3, 20, (2.0, 1.0, 3.0))}
CHANNELS, WIDTH = 5, 20


def without_resizing():
    """Stand for torchvision's transforms, which resize the padding mask; here it has the latent's size."""
    functional = SimpleNamespace(resize=lambda mask, size, interpolation: mask)
    return SimpleNamespace(functional=functional, InterpolationMode=SimpleNamespace(NEAREST="nearest"))


@pytest.fixture(autouse=True)
def _resizing(monkeypatch):
    monkeypatch.setattr(transformer_cosmos, "transforms", without_resizing(), raising=False)


def peer_anima(heads=2, head_dim=128, rope_scale=(1.0, 4.0, 4.0), channels=CHANNELS, width=WIDTH, layers=2):
    return CosmosTransformer3DModel(
        in_channels=channels,
        out_channels=channels,
        num_attention_heads=heads,
        attention_head_dim=head_dim,
        num_layers=layers,
        mlp_ratio=2.0,
        text_embed_dim=width,
        adaln_lora_dim=12,
        rope_scale=rope_scale,
        extra_pos_embed_type=None,
    ).eval()


def weights_of(peer):
    theirs = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    sources, rest = anima_keymap(len(peer.transformer_blocks)).sources(theirs)
    assert not rest
    return {name: source.read(theirs) for name, source in sources.items()}


@pytest.mark.parametrize("case", CONFIGS)
def test_every_block(case):
    x, t, context = draw((2, CHANNELS, 6, 10), 1), np.array([0.8, 0.3]), draw((2, 7, WIDTH), 2)
    heads, head_dim, rope_scale = CONFIGS[case]
    with float64_throughout():
        peer = peer_anima(heads, head_dim, rope_scale)
        redraw(peer, 3)
        with outputs_of(peer) as blocks:
            want = peer(
                torch.from_numpy(x)[:, :, None],
                torch.from_numpy(t),
                torch.from_numpy(context),
                padding_mask=torch.zeros(1, 1, 6, 10),
            ).sample[:, :, 0]
    m = Module(weights_of(peer), taps=Taps())
    got = anima(m, x, t, context, rope_scale, qk_eps=1e-5)
    assert distance(got, want) <= 1e-12
    names = {"self_attn": "attn1", "cross_attn": "attn2", "mlp": "ff"}
    for at, tap in m.taps.items():
        if at in ("t_embedder.1", "final_layer"):
            at = {"t_embedder.1": "time_embed.t_embedder", "final_layer": "proj_out"}[at]
        else:
            _, number, *part = at.split(".")
            at = ".".join(["transformer_blocks", number, *(names[one] for one in part)])
        assert distance(tap.reshape(-1), blocks[at].reshape(-1)) <= 1e-12, at
    assert len(m.taps) == 2 * 4 + 2
    assert distance(anima(m, x, t, context, rope_scale), want) > 1e-12  # ComfyUI's eps of queries and keys


def test_nvidia_s_names():
    """What refsd names as NVIDIA does, diffusers reads back; all shapes are inferred from these names."""
    peer = peer_anima()
    redraw(peer, 3)
    ours = weights_of(peer)
    shapes = {name: tensor.shape for name, tensor in ours.items()}
    assert anima_shapes(anima_size(shapes)) == shapes
    one_file = {f"net.{name}": torch.from_numpy(t.values()) for name, t in ours.items()}
    back = convert_cosmos_transformer_checkpoint_to_diffusers(one_file)
    assert back.keys() == peer.state_dict().keys()
    for name, tensor in peer.state_dict().items():
        assert torch.equal(back[name], tensor), name


def test_the_released_size():
    with torch.device("meta"):
        peer = CosmosTransformer3DModel(num_attention_heads=16, extra_pos_embed_type=None)
    ours = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    sources, rest = anima_keymap(28).sources(ours)
    assert {name: source.shape(ours) for name, source in sources.items()} == anima_shapes(ANIMA)
    assert not rest
