"""Ideogram 4's transformer against diffusers, in float64: the output, and what every block gives on the way."""

import numpy as np
import pytest
import torch
from diffusers import Ideogram4Transformer2DModel
from diffusers.modular_pipelines.ideogram4.before_denoise import Ideogram4PrepareAdditionalInputsStep as Inputs
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.models.ideogram4 import ideogram4
from refsd.models.ideogram4.network import Ideogram4Size, ideogram4_keymap, ideogram4_shapes
from refsd.models.ideogram4.original import _run, _taps
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# heads; their channels; sections; H, W; words of the items, the width of the text
CONFIGS = {
    "real-head": (2, 256, (24, 20, 20), (3, 5), (7, 5), 40),
    "narrow": (3, 24, (5, 4, 3), (5, 2), (9, 1), 24),
    "no-words": (1, 16, (1, 2, 1), (1, 6), (3, 0), 7),
}


def peer_ideogram4(heads, head_dim, width, channels=8, layers=2, **more) -> Ideogram4Transformer2DModel:
    return Ideogram4Transformer2DModel(
        in_channels=channels,
        num_layers=layers,
        attention_head_dim=head_dim,
        num_attention_heads=heads,
        intermediate_size=72,
        adaln_dim=20,
        llm_features_dim=width,
        **more,
    )


def weights_of(peer):
    there = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    sources, unread = ideogram4_keymap(len(peer.layers)).sources(there)
    assert not unread
    return {name: source.read(there) for name, source in sources.items()}


def drawn(case):
    """The inputs, the left-padded ones of their pipeline, and the original with its answer and its taps."""
    heads, head_dim, sections, (H, W), lengths, width = CONFIGS[case]
    J = max(lengths)
    given = {"x": draw((2, 8, H, W), 1), "timesteps": np.array([0.801, 0.013]), "context": draw((2, J, width), 2)}
    given["context_mask"] = (np.arange(J) >= J - np.array(lengths)[:, None]).astype(np.int64)
    with float64_throughout():
        peer = peer_ideogram4(heads, head_dim, width, mrope_section=sections).eval()
        redraw(peer, 3)
        with outputs_of(peer) as blocks:
            want = _run(peer, {name: torch.from_numpy(array) for name, array in given.items()}, {})["out"]
    return given, peer, want, _taps(dict(blocks), given)


@pytest.mark.parametrize("case", CONFIGS)
def test_every_block(case):
    given, peer, want, theirs = drawn(case)
    m = Module(weights_of(peer), taps=Taps(ops=True))
    got = ideogram4(m, **given, sections=CONFIGS[case][2])
    assert distance(got, want) <= 1e-12
    names = {at: at.removesuffix(".weight").replace("attention.o", "attention.to_out.0") for at in m.taps}
    held = {at: name for at, name in names.items() if name in theirs}
    assert len(held) == 11 + 2 * 14
    for at, name in held.items():
        assert distance(m.taps[at], theirs[name]) <= 1e-12, at
    # what padding holds is not read
    other = np.where(given["context_mask"][..., None] != 0, given["context"], 5.0)
    np.testing.assert_allclose(
        ideogram4(Module(m.weights), **{**given, "context": other}, sections=CONFIGS[case][2]), got, rtol=1e-12
    )


@pytest.mark.parametrize("case", CONFIGS)
def test_the_positions_of_their_pipeline(case):
    """Segments, roles and positions as the step before the loop makes them."""
    given, peer, want, _ = drawn(case)
    (N, C, H, W), (_, J, E), lengths = given["x"].shape, given["context"].shape, CONFIGS[case][4]
    with float64_throughout():
        ids, segments, indicator = Inputs._prepare_ids(list(lengths), H, W, J, torch.device("cpu"))
        x = torch.from_numpy(given["x"].reshape(N, C, -1).transpose(0, 2, 1))
        tokens = torch.cat([x.new_zeros((N, J, C)), x], 1)
        text = torch.cat([torch.from_numpy(given["context"]), x.new_zeros((N, H * W, E))], 1)
        time = torch.from_numpy(given["timesteps"])
        theirs = peer(tokens, time, text, ids, segments, indicator).sample[:, J:]
    assert distance(want.numpy(), theirs.transpose(1, 2).reshape(want.shape)) <= 1e-14


def test_the_call_without_a_prompt():
    """The picture alone, as diffusers' second network gets it: words that are all padding make no difference."""
    given, peer, _, _ = drawn("narrow")
    N, C, H, W = given["x"].shape
    with float64_throughout():
        ids, segments, indicator = Inputs._prepare_ids([0] * N, H, W, 0, torch.device("cpu"))
        x = torch.from_numpy(given["x"].reshape(N, C, -1).transpose(0, 2, 1))
        text = x.new_zeros((N, H * W, given["context"].shape[2]))
        want = peer(x, torch.from_numpy(given["timesteps"]), text, ids, segments, indicator).sample
    alone = {**given, "context_mask": 0 * given["context_mask"]}
    got = ideogram4(Module(weights_of(peer)), **alone, sections=CONFIGS["narrow"][2])
    assert distance(got, want.transpose(1, 2).reshape(got.shape)) <= 1e-12


def test_the_shapes_of_the_real_one():
    with torch.device("meta"):
        peer = Ideogram4Transformer2DModel()
    there = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    sources, unread = ideogram4_keymap().sources(there)
    assert not unread
    assert {name: source.shape(there) for name, source in sources.items()} == ideogram4_shapes(Ideogram4Size())
