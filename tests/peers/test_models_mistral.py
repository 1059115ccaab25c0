"""Mistral against transformers, in float64: every hidden state, with and without padding; its names in files."""

import gguf
import numpy as np
import pytest
import torch
from float64_peers import distance, float64_throughout, outputs_of, redraw
from test_models_t5 import PADDED, padding
from transformers import (
    Ministral3Config,
    Ministral3ForCausalLM,
    Ministral3Model,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Mistral3Model,
    MistralConfig,
    MistralForCausalLM,
    MistralModel,
)
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

from refsd.components import load
from refsd.models.mistral import mistral
from refsd.models.mistral.network import (
    MINISTRAL_3B,
    MISTRAL,
    MistralSize,
    mistral_gguf_keymap,
    mistral_keymap,
    mistral_shapes,
)
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import stored
from refsd.weights import open_checkpoint

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


YARN = {
    "rope_type": "yarn",
    "rope_theta": 300.0,
    "factor": 3.5,
    "original_max_position_embeddings": 8,
    "beta_fast": 2.5,
    "beta_slow": 0.125,
    "mscale": 0.75,
    "mscale_all_dim": 2.0,
    "llama_4_scaling_beta": 0.3,
}
# Ministral's rotation in a config: the released one, and others, each field of its own
ROTATIONS = {
    "released": MISTRAL.folder.config(MINISTRAL_3B)["rope_parameters"],
    "other": YARN,
    "not-rounded": {**YARN, "truncate": False},
    "factor-told": {**YARN, "attention_factor": 1.75},
    "factor-from-the-stretch": {name: value for name, value in YARN.items() if not name.startswith("mscale")},
    "an-empty-ramp": {**YARN, "beta_fast": 90.0, "beta_slow": 80.0, "original_max_position_embeddings": 300},
    "betas-by-default": {**YARN, "beta_fast": None, "beta_slow": None, "original_max_position_embeddings": 400},
}  # fmt: skip


def peer_ministral(size: MistralSize, rotation, kind=Ministral3Model):
    return kind(
        Ministral3Config(
            vocab_size=size.vocab,
            hidden_size=size.hidden,
            intermediate_size=size.mlp,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.kv_heads,
            head_dim=size.head_dim,
            rope_parameters=dict(rotation),
            pad_token_id=0,
            bos_token_id=0,
            eos_token_id=1,
        )
    ).eval()


@pytest.mark.parametrize("padded", PADDED)
@pytest.mark.parametrize("name", ROTATIONS)
def test_every_hidden_state_of_ministral(tmp_path, name, padded):
    """Its numbers are those of the folder's config.json."""
    size, tokens = MistralSize(40, 3, 4, 2, 24, 56, 50), 29
    ids = np.random.default_rng(1).integers(0, size.vocab, (3, tokens))
    mask = padding(padded, tokens)
    with float64_throughout():
        peer = peer_ministral(size, ROTATIONS[name])
        redraw(peer, 2)
        peer.save_pretrained(tmp_path / "text_encoder")
        with outputs_of(peer) as blocks:
            given = None if mask is None else torch.from_numpy(mask)
            want = peer(torch.from_numpy(ids), attention_mask=given, output_hidden_states=True, use_cache=False)
    m, params = load(open_checkpoint(tmp_path), "mistral", Arithmetic(FLOAT64))
    m.taps = Taps()
    hidden_states = mistral(m, ids, mask, **params)
    for i, (got, there) in enumerate(zip(hidden_states, want.hidden_states, strict=True)):
        assert distance(got, there) <= 1e-12, i
    assert len(m.taps) == 3 * size.layers
    for at, got in m.taps.items():
        assert distance(got, blocks[at.removeprefix("model.")]) <= 1e-12, at


def test_ministral_3b():
    """Its shapes, and what a file without config.json is: transformers' defaults for all sizes."""
    config = Ministral3Config()
    told = {field: value for field, value in config.rope_parameters.items() if field != "type"}
    ours = MISTRAL.folder.config(MINISTRAL_3B)
    assert {**ours["rope_parameters"], "max_position_embeddings": ours["max_position_embeddings"]} == told
    assert (config.rms_norm_eps, config.head_dim) == (1e-5, MINISTRAL_3B.head_dim)
    with torch.device("meta"):
        peer = peer_ministral(MINISTRAL_3B, config.rope_parameters, Ministral3ForCausalLM)
    there = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items() if name != "lm_head.weight"}
    assert there == mistral_shapes(MINISTRAL_3B)


def peer_mistral3(size: MistralSize, rotation) -> Mistral3Model:
    """Ministral with its vision tower, as Ernie-Image's folders have it."""
    vision = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8,
        "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    text = peer_ministral(size, rotation).config
    return Mistral3Model(Mistral3Config(text_config=text, vision_config={"model_type": "pixtral", **vision})).eval()


def test_the_names_with_a_vision_tower(tmp_path):
    with float64_throughout():
        peer = peer_mistral3(MistralSize(40, 2, 4, 2, 24, 56, 50), YARN)
        redraw(peer, 3)
    peer.save_pretrained(tmp_path / "text_encoder")
    held = open_checkpoint(tmp_path).components["mistral"]
    assert held.config["factor"] == 3.5 and held.config["theta"] == 300.0
    ours = peer.language_model.state_dict()
    assert len(held.weights) == len(ours)
    for name, tensor in ours.items():
        np.testing.assert_array_equal(held.weights[f"model.{name}"].values(), tensor.numpy())
