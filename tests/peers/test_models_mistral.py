"""Mistral against transformers, in float64: every hidden state, with and without padding; its names in files."""

import gguf
import numpy as np
import pytest
import torch
from float64_peers import distance, float64_throughout, outputs_of, redraw
from test_models_t5 import PADDED, padding
from transformers import (
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    MistralConfig,
    MistralForCausalLM,
    MistralModel,
)
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

from refsd.models.mistral import mistral
from refsd.models.mistral.network import MistralSize, mistral_gguf_keymap, mistral_keymap, mistral_shapes
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# A size, theta, tokens.
CONFIGS = {
    "real-heads": (MistralSize(hidden=40, layers=3, heads=4, kv_heads=1, head_dim=128, mlp=56, vocab=99), 1e9, 37),
    "grouped": (MistralSize(hidden=24, layers=4, heads=6, kv_heads=2, head_dim=10, mlp=33, vocab=50), 1e9, 65),
    "plain": (MistralSize(hidden=20, layers=2, heads=3, kv_heads=3, head_dim=6, mlp=16, vocab=50), 5e4, 12),
    "one-token": (MistralSize(hidden=16, layers=1, heads=2, kv_heads=1, head_dim=4, mlp=20, vocab=9), 1e9, 1),
}


def peer_config(size: MistralSize, theta=1e9, attention="sdpa") -> MistralConfig:
    config = MistralConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        head_dim=size.head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        rms_norm_eps=1e-5,
        sliding_window=None,
        bos_token_id=0,
        eos_token_id=1,
    )
    config._attn_implementation = attention
    return config


def peer_mistral(size: MistralSize, theta=1e9, attention="sdpa") -> MistralModel:
    return MistralModel(peer_config(size, theta, attention))


def weights_of(peer):
    there = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    sources, unread = mistral_keymap().sources(there)
    assert not unread
    return {name: source.read(there) for name, source in sources.items()}


@pytest.mark.parametrize("padded", PADDED)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_hidden_state(name, padded):
    size, theta, tokens = CONFIGS[name]
    ids = np.random.default_rng(1).integers(0, size.vocab, (3, tokens))
    mask = padding(padded, tokens)
    with float64_throughout():
        peer = peer_mistral(size, theta).eval()
        redraw(peer, 2)
        with outputs_of(peer) as blocks:
            given = None if mask is None else torch.from_numpy(mask)
            want = peer(torch.from_numpy(ids), attention_mask=given, output_hidden_states=True, use_cache=False)
    m = Module(weights_of(peer), taps=Taps())
    hidden_states = mistral(m, ids, mask, size.head_dim, theta)
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
        peer = peer_mistral(size, theta, "eager").eval()
        redraw(peer, 4)
        given = None if mask is None else torch.from_numpy(mask)
        want = peer(torch.from_numpy(ids), attention_mask=given, output_hidden_states=True, use_cache=False)
    hidden_states = mistral(Module(weights_of(peer)), ids, mask, size.head_dim, theta)
    for got, there in zip(hidden_states, want.hidden_states, strict=True):
        assert distance(got[seen], there[seen]) <= 1e-12


def test_the_shapes_of_the_real_one():
    """What transformers takes for Mistral Small 3.1, and 3.2, where a config says nothing."""
    with torch.device("meta"):
        config = Mistral3Config()
        peer = Mistral3ForConditionalGeneration(config)
    assert config.text_config.rms_norm_eps == 1e-5
    assert config.text_config.rope_parameters["rope_theta"] == 1e9
    assert not config.text_config.sliding_window
    shapes = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    sources, unread = mistral_keymap().sources(shapes)
    assert {name: source.shape(shapes) for name, source in sources.items()} == mistral_shapes(MistralSize())
    pictures = ("model.vision_tower.", "model.multi_modal_projector.", "lm_head.")
    assert unread and all(name.startswith(pictures) for name in unread)


def test_the_shapes_of_the_language_model_alone():
    size = CONFIGS["grouped"][0]
    with torch.device("meta"):
        peer = MistralForCausalLM(peer_config(size))
    there = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items() if name != "lm_head.weight"}
    assert there == mistral_shapes(size)


@pytest.mark.parametrize("arch", (gguf.MODEL_ARCH.MISTRAL3, gguf.MODEL_ARCH.LLAMA), ids=str)
def test_names_in_a_gguf(arch):
    names = gguf.get_tensor_name_map(arch, 40)
    keymap = mistral_gguf_keymap()
    there = {names.get_name(ours, try_suffixes=(".weight",)): ours for ours in mistral_shapes(MistralSize())}
    sources, unread = keymap.sources(there)
    assert not unread
    assert {source.names[0]: ours for ours, source in sources.items()} == there


@pytest.mark.parametrize("name", ("q", "k", "v"))
def test_rows_in_a_gguf_stand_as_transformers_reads_them(name):
    size = CONFIGS["grouped"][0]
    theirs = f"blk.1.attn_{name}.weight"
    rows = (size.kv_heads if name in "kv" else size.heads) * size.head_dim
    tensor = stored(np.random.default_rng(5).standard_normal((rows, size.hidden)))
    processor = LlamaTensorProcessor({"num_attention_heads": size.heads, "num_key_value_heads": size.kv_heads})
    want = processor.process(tensor.data, theirs).weights
    sources, _ = mistral_gguf_keymap(size.layers, size.head_dim).sources([theirs])
    got = sources[f"model.layers.1.self_attn.{name}_proj.weight"].read({theirs: tensor})
    np.testing.assert_array_equal(got.data, want)
    assert (name == "v") == np.array_equal(got.data, tensor.data)
