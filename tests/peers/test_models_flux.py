"""FLUX's blocks against diffusers, in float64."""

import numpy as np
import pytest
import torch
from diffusers.models.embeddings import get_1d_rotary_pos_embed
from diffusers.models.transformers.transformer_flux import FluxSingleTransformerBlock, FluxTransformerBlock
from float64_peers import distance, draw, float64_throughout, redraw

from refsd.kernels.rope import rope_angles
from refsd.models.flux import double_stream_block, single_stream_block
from refsd.models.flux.network import flux_keymap
from refsd.module import Module
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

KEYMAP = flux_keymap(double_blocks=1, single_blocks=1)


def weights_of(peer, theirs, ours):
    """The peer's parameters under the original names of one block."""
    there = {f"{theirs}.0.{name}": stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    sources, unread = KEYMAP.sources(there)
    assert not unread
    return {name.removeprefix(f"{ours}.0."): source.read(there) for name, source in sources.items()}


def tables(ids, axes_dim, theta=10000):
    """diffusers' FluxPosEmbed for one item, with positions that need not be whole numbers."""
    parts = [
        get_1d_rotary_pos_embed(
            dim, ids[:, a], theta=theta, repeat_interleave_real=True, use_real=True, freqs_dtype=torch.float64
        )
        for a, dim in enumerate(axes_dim)
    ]
    return tuple(torch.cat([part[i] for part in parts], dim=-1) for i in (0, 1))


CONFIGS = [
    {"heads": 3, "axes": (4, 6, 6), "txt": 7, "hw": (3, 5)},
    {"heads": 2, "axes": (16, 56, 56), "txt": 1, "hw": (6, 2)},
    {"heads": 1, "axes": (2, 4, 2), "txt": 33, "hw": (1, 9)},
]


def positions(config):
    """The ids of the text, then of the picture: (reference, row, column). -> [J + L, 3]"""
    H, W = config["hw"]
    picture = [(1.0, row, column) for row in range(H) for column in range(W)]
    return np.array([(0.0, 0.0, 0.0)] * config["txt"] + picture) * 1.0


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_double_stream_block(config):
    head_dim = sum(config["axes"])
    D = config["heads"] * head_dim
    ids = positions(config)
    img, txt, vec = draw((2, len(ids) - config["txt"], D), 1), draw((2, config["txt"], D), 2), draw((2, D), 3)
    with float64_throughout():
        peer = FluxTransformerBlock(D, config["heads"], head_dim)
        redraw(peer, 4)
        rotary = tables(torch.from_numpy(ids), config["axes"])
        want_txt, want_img = peer(torch.from_numpy(img), torch.from_numpy(txt), torch.from_numpy(vec), rotary)
    m = Module(weights_of(peer, "transformer_blocks", "double_blocks"))
    angle = rope_angles(np.stack([ids, ids]), config["axes"], 10000)
    got_img, got_txt = double_stream_block(m, img, txt, vec, angle, config["heads"])
    assert distance(got_img, want_img) <= 1e-12
    assert distance(got_txt, want_txt) <= 1e-12


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_single_stream_block(config):
    head_dim = sum(config["axes"])
    D = config["heads"] * head_dim
    ids = positions(config)
    x, vec = draw((2, len(ids), D), 1), draw((2, D), 2)
    with float64_throughout():
        peer = FluxSingleTransformerBlock(D, config["heads"], head_dim)
        redraw(peer, 3)
        txt, img = torch.from_numpy(x).split([config["txt"], len(ids) - config["txt"]], dim=1)
        rotary = tables(torch.from_numpy(ids), config["axes"])
        want = torch.cat(peer(img, txt, torch.from_numpy(vec), rotary), dim=1)
    m = Module(weights_of(peer, "single_transformer_blocks", "single_blocks"))
    angle = rope_angles(np.stack([ids, ids]), config["axes"], 10000)
    got = single_stream_block(m, x, vec, angle, config["heads"])
    assert distance(got, want) <= 1e-12
