"""Gemma 2 against transformers, in float64: every hidden state, with and without padding behind the text."""

import numpy as np
import pytest
import torch
from float64_peers import distance, float64_throughout, outputs_of, redraw
from transformers import Gemma2Config, Gemma2Model

from refsd.models.gemma2 import gemma2
from refsd.models.gemma2.network import Gemma2Size, gemma2_shapes
from refsd.models.language_model.network import decoder_keymap
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

CONFIGS = {
    "grouped": (Gemma2Size(hidden=40, layers=3, heads=4, kv_heads=2, mlp=56, vocab=99), 37),
    "one-key": (Gemma2Size(hidden=24, layers=2, heads=2, kv_heads=1, mlp=33, vocab=50), 12),
}


def peer_gemma2(size: Gemma2Size) -> Gemma2Model:
    config = Gemma2Config(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
    )
    config._attn_implementation = "eager"
    return Gemma2Model(config).eval()


def weights_of(peer):
    there = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    sources, unread = decoder_keymap().sources(there)
    assert not unread
    return {name: source.read(there) for name, source in sources.items()}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_hidden_state(name, padded):
    size, tokens = CONFIGS[name]
    ids = np.random.default_rng(1).integers(0, size.vocab, (3, tokens))
    lengths = np.array([tokens, 5, 1]) if padded else np.full(3, tokens)
    mask = (np.arange(tokens) < lengths[:, None]).astype(np.int64)
    with float64_throughout():
        peer = peer_gemma2(size)
        redraw(peer, 2)
        for parameter in peer.parameters():
            if parameter.ndim == 2 and parameter.shape[1] == size.hidden:
                parameter.data *= 3  # scores large enough for their limit to be felt
        with outputs_of(peer) as theirs:
            want = peer(torch.from_numpy(ids), torch.from_numpy(mask), output_hidden_states=True).hidden_states
    taps = Taps()
    weights = weights_of(peer)
    assert {name: w.shape for name, w in weights.items()} == gemma2_shapes(size)
    got = gemma2(Module(weights, taps=taps), ids, mask if padded else None)
    assert len(got) == len(want) == size.layers + 1
    for i, n in enumerate(lengths):
        for mine, there in zip(got, want, strict=True):
            assert distance(mine[i, :n], there[i, :n]) <= 1e-12
        for part in ("", ".self_attn", ".mlp"):
            assert distance(taps[f"model.layers.1{part}"][i, :n], theirs[f"layers.1{part}"][i, :n]) <= 1e-12
