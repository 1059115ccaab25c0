"""Anima's text conditioner against diffusers', in float64: the output, and what every block gives on the way."""

import numpy as np
import pytest
import torch
from diffusers import AnimaTextConditioner
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.models.anima_conditioner import LENGTH, anima_conditioner
from refsd.models.anima_conditioner.network import (
    CONDITIONER,
    ConditionerSize,
    conditioner_shapes,
    conditioner_size,
)
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

SIZE = ConditionerSize(40, 3, 20, 72, 50, 24)


def peer_conditioner(size=SIZE, length=LENGTH):
    return AnimaTextConditioner(
        source_dim=size.context_dim,
        target_dim=size.hidden,
        model_dim=size.hidden,
        num_layers=size.layers,
        num_attention_heads=size.hidden // size.head_dim,
        mlp_ratio=size.mlp / size.hidden,
        target_vocab_size=size.vocab,
        min_sequence_length=length,
    ).eval()


def lengthen_rotary(peer):
    """Compute the frequencies in float64: they are made when the class is, by `torch.float32` by name."""
    dim = peer.config.model_dim // peer.config.num_attention_heads
    peer.rotary_emb.inv_freq = 1.0 / 10000.0 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def weights_of(peer):
    return {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}


def mask(*lengths):
    return np.array([[int(i < n) for i in range(max(lengths))] for n in lengths])


# Masks of T5's tokens and of Qwen3's, length of the output
CASES = {
    "whole": (None, None, LENGTH),
    "masked": (mask(11, 7), mask(3, 9), 17),
    "longer": (mask(5, 11), None, 11),
    "longest": (None, mask(9, 1), 4),
    "empty": (mask(11, 1), np.array([[1] * 9, [0] * 9]), 12),
}


@pytest.mark.parametrize("case", CASES)
def test_every_block(case):
    seen, context_seen, length = CASES[case]
    ids, context = np.random.default_rng(1).integers(0, SIZE.vocab, (2, 11)), draw((2, 9, SIZE.context_dim), 2)
    with float64_throughout():
        peer = peer_conditioner(length=length)
        redraw(peer, 3)
        lengthen_rotary(peer)
        given = [None if one is None else torch.from_numpy(one) for one in (seen, context_seen)]
        with outputs_of(peer) as blocks:
            want = peer(torch.from_numpy(context), torch.from_numpy(ids), *given)
    m = Module(weights_of(peer), taps=Taps())
    got = anima_conditioner(m, ids, context, seen, context_seen, length)
    assert got.shape[1] == max(length, 11)
    assert distance(got, want) <= 1e-12
    for at, tap in m.taps.items():
        assert distance(tap, blocks[at]) <= 1e-12, at
    assert len(m.taps) == SIZE.layers * 4


def test_the_released_size():
    with torch.device("meta"):
        peer = AnimaTextConditioner()
    theirs = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    assert theirs == conditioner_shapes(CONDITIONER)
    assert conditioner_size(theirs) == CONDITIONER
