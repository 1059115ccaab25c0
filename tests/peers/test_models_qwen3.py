"""Qwen3 against transformers, in float64: every hidden state, with and without padding."""

import numpy as np
import pytest
import torch
from float64_peers import distance, float64_throughout, outputs_of, redraw
from test_models_t5 import PADDED, padding
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3Model

from refsd.models.language_model.network import decoder_keymap
from refsd.models.qwen3 import qwen3
from refsd.models.qwen3.network import Qwen3Size, qwen3_shapes
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# A size, theta, tokens.
CONFIGS = {
    "real-heads": (Qwen3Size(hidden=40, layers=3, heads=4, kv_heads=1, head_dim=128, mlp=56, vocab=99), 1e6, 37),
    "grouped": (Qwen3Size(hidden=24, layers=4, heads=6, kv_heads=2, head_dim=10, mlp=33, vocab=50), 1e6, 65),
    "plain": (Qwen3Size(hidden=20, layers=2, heads=3, kv_heads=3, head_dim=6, mlp=16, vocab=50), 5e4, 12),
    "one-token": (Qwen3Size(hidden=16, layers=1, heads=2, kv_heads=1, head_dim=4, mlp=20, vocab=9), 1e6, 1),
}


def peer_config(size: Qwen3Size, theta=1e6, attention="sdpa") -> Qwen3Config:
    config = Qwen3Config(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    config._attn_implementation = attention
    return config


def weights_of(peer):
    there = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    sources, unread = decoder_keymap().sources(there)
    assert not unread
    return {name: source.read(there) for name, source in sources.items()}


@pytest.mark.parametrize("padded", PADDED)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_hidden_state(name, padded):
    size, theta, tokens = CONFIGS[name]
    ids = np.random.default_rng(1).integers(0, size.vocab, (3, tokens))
    mask = padding(padded, tokens)
    with float64_throughout():
        peer = Qwen3Model(peer_config(size, theta)).eval()
        redraw(peer, 2)
        with outputs_of(peer) as blocks:
            given = None if mask is None else torch.from_numpy(mask)
            want = peer(torch.from_numpy(ids), attention_mask=given, output_hidden_states=True, use_cache=False)
    m = Module(weights_of(peer), taps=Taps())
    hidden_states = qwen3(m, ids, mask, theta)
    assert len(hidden_states) == len(want.hidden_states) == size.layers + 1
    for i, (got, there) in enumerate(zip(hidden_states, want.hidden_states, strict=True)):
        assert distance(got, there) <= 1e-12, i
    assert distance(hidden_states[-1], want.last_hidden_state) <= 1e-12
    assert len(m.taps) == 3 * size.layers
    for at, got in m.taps.items():
        assert distance(got, blocks[at.removeprefix("model.")]) <= 1e-12, at


@pytest.mark.parametrize("padded", PADDED)
def test_eager_attention_where_a_token_is(padded):
    """Of padding that sees nothing, eager attention makes the mean of all; nobody looks there."""
    size, theta, tokens = CONFIGS["grouped"]
    ids = np.random.default_rng(3).integers(0, size.vocab, (3, tokens))
    mask = padding(padded, tokens)
    seen = np.ones(ids.shape, bool) if mask is None else mask > 0
    with float64_throughout():
        peer = Qwen3Model(peer_config(size, theta, "eager")).eval()
        redraw(peer, 4)
        given = None if mask is None else torch.from_numpy(mask)
        want = peer(torch.from_numpy(ids), attention_mask=given, output_hidden_states=True, use_cache=False)
    hidden_states = qwen3(Module(weights_of(peer)), ids, mask, theta)
    for got, there in zip(hidden_states, want.hidden_states, strict=True):
        assert distance(got[seen], there[seen]) <= 1e-12


@pytest.mark.parametrize("size", (Qwen3Size(), CONFIGS["grouped"][0]), ids=str)
def test_the_shapes_of_the_real_one(size):
    with torch.device("meta"):
        peer = Qwen3ForCausalLM(peer_config(size))
    there = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items() if name != "lm_head.weight"}
    assert there == qwen3_shapes(size)
