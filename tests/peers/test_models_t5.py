"""T5's and UMT5's encoders against transformers, in float64: every block, with and without padding."""

import numpy as np
import pytest
import torch
from float64_peers import distance, float64_throughout, outputs_of, redraw
from transformers import T5Config, T5EncoderModel, UMT5Config, UMT5EncoderModel
from transformers.models.t5.modeling_t5 import T5Attention

from refsd.models.t5 import relative_position_bucket, t5_encoder
from refsd.models.t5.network import UMT5_XXL, T5Size, t5_keymap, t5_shapes
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# A size, max_distance, tokens.
CONFIGS = {
    "real-heads": (T5Size(hidden=48, layers=3, heads=3, head_dim=64, mlp=80, vocab=99), 128, 77),
    "beyond-the-farthest-bucket": (T5Size(hidden=24, layers=2, heads=4, head_dim=8, mlp=33, vocab=50), 128, 151),
    "other-buckets": (T5Size(hidden=30, layers=2, heads=1, head_dim=7, mlp=10, vocab=50, buckets=12), 17, 37),
    "one-token": (T5Size(hidden=16, layers=1, heads=2, head_dim=4, mlp=20, vocab=9), 128, 1),
}
PADDED = (None, "right", "left", "holes")


def peer_t5(size: T5Size, max_distance=128, act="gelu_pytorch_tanh", attention="eager"):
    kinds = (UMT5Config, UMT5EncoderModel) if size.table_in_every_layer else (T5Config, T5EncoderModel)
    config = kinds[0](
        vocab_size=size.vocab,
        d_model=size.hidden,
        d_kv=size.head_dim,
        d_ff=size.mlp,
        num_layers=size.layers,
        num_heads=size.heads,
        relative_attention_num_buckets=size.buckets,
        relative_attention_max_distance=max_distance,
        feed_forward_proj="gated-gelu",
    )
    config.dense_act_fn = act
    config._attn_implementation = attention
    return kinds[1](config).eval()


def weights_of(peer):
    """The peer's parameters under our names; the token embeddings have two names there."""
    there = {
        name: stored(tensor.numpy())
        for name, tensor in peer.state_dict().items()
        if name != "encoder.embed_tokens.weight"
    }
    sources, unread = t5_keymap().sources(there)
    assert not unread
    return {name: source.read(there) for name, source in sources.items()}


def padding(kind, tokens):
    """Which tokens of three items are seen; the first item is whole. -> [3, L], or None"""
    if kind is None:
        return None
    mask = np.ones((3, tokens), np.int64)
    if kind == "right":
        mask[1, -(tokens // 3) or tokens :] = 0
        mask[2, 1:] = 0
    elif kind == "left":
        mask[1, : tokens // 3] = 0
        mask[2, : tokens - 1] = 0
    else:
        mask[1:] = np.random.default_rng(3).integers(0, 2, (2, tokens))
        mask[:, 0] = 1
    return mask


@pytest.mark.parametrize("padded", PADDED)
@pytest.mark.parametrize("every_layer", (False, True), ids=("t5", "umt5"))
@pytest.mark.parametrize("name", CONFIGS)
def test_the_encoder_and_every_block(name, every_layer, padded):
    size, max_distance, tokens = CONFIGS[name]
    size = size._replace(table_in_every_layer=every_layer)
    ids = np.random.default_rng(1).integers(0, size.vocab, (3, tokens))
    mask = padding(padded, tokens)
    with float64_throughout():
        peer = peer_t5(size, max_distance)
        redraw(peer, 2)
        with outputs_of(peer) as blocks:
            given = None if mask is None else torch.from_numpy(mask)
            want = peer(torch.from_numpy(ids), attention_mask=given).last_hidden_state
    m = Module(weights_of(peer), taps=Taps())
    assert distance(t5_encoder(m, ids, mask, max_distance), want) <= 1e-12
    assert len(m.taps) == 5 * size.layers
    for at, got in m.taps.items():
        assert distance(got, blocks[at]) <= 1e-12, at


@pytest.mark.parametrize("act", ("gelu_new", "gelu_pytorch_tanh"))
@pytest.mark.parametrize("attention", ("eager", "sdpa"))
def test_both_names_of_the_activation_and_both_attentions(act, attention):
    size, _, _ = CONFIGS["real-heads"]
    ids = np.random.default_rng(4).integers(0, size.vocab, (3, 33))
    mask = padding("right", 33)
    with float64_throughout():
        peer = peer_t5(size, act=act, attention=attention)
        redraw(peer, 5)
        want = peer(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask)).last_hidden_state
    assert distance(t5_encoder(Module(weights_of(peer)), ids, mask), want) <= 1e-12


@pytest.mark.parametrize("buckets, max_distance", [(32, 128), (8, 20), (64, 256), (12, 17)])
def test_buckets_are_those_of_the_logarithm(buckets, max_distance):
    positions = np.arange(-700, 701)
    want = T5Attention._relative_position_bucket(torch.from_numpy(positions), True, buckets, max_distance)
    np.testing.assert_array_equal(relative_position_bucket(positions, buckets, max_distance), want.numpy())


@pytest.mark.parametrize("size", (T5Size(), UMT5_XXL, CONFIGS["other-buckets"][0]), ids=str)
def test_the_shapes_of_the_real_ones(size):
    with torch.device("meta"):
        peer = peer_t5(size)
    there = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    there.pop("encoder.embed_tokens.weight", None)
    assert there == t5_shapes(size)
