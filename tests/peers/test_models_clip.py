"""CLIP's text encoder against transformers, in float64: every layer, every clip_skip, the pooled output."""

import numpy as np
import pytest
import torch
from float64_peers import distance, draw_weights, float64_throughout
from transformers import CLIPTextConfig, CLIPTextModel

from refsd.models.clip import clip_text
from refsd.models.clip.network import CLIPSize, clip_shapes
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# A size, the heads, the activation, tokens.
CONFIGS = {
    "sd15": (CLIPSize(hidden=96, layers=3, mlp=384, vocab=1000), 12, "quick_gelu", 77),
    "short": (CLIPSize(hidden=40, layers=2, mlp=33, vocab=50, positions=9), 5, "gelu", 9),
    "shorter-than-the-table": (
        CLIPSize(hidden=64, layers=4, mlp=128, vocab=300, positions=20),
        1,
        "quick_gelu",
        13,
    ),
    "one-token": (CLIPSize(hidden=24, layers=1, mlp=96, vocab=10, positions=5), 3, "quick_gelu", 1),
}


def prompts(size: CLIPSize, tokens: int, eos: int) -> np.ndarray:
    """Two prompts of different lengths, each ended and padded by eos as CLIP's tokenizer does. [2, L]"""
    ids = np.random.default_rng(1).integers(0, eos, (2, tokens))
    ids[0, -1] = eos
    ids[1, tokens // 2 :] = eos
    return ids


@pytest.mark.parametrize("name", CONFIGS)
def test_clip_and_every_layer(name):
    size, num_heads, hidden_act, tokens = CONFIGS[name]
    eos = size.vocab - 3
    weights = draw_weights(clip_shapes(size), seed=2)
    ids = prompts(size, tokens, eos)
    with float64_throughout():
        peer = peer_clip(size, num_heads, eos, hidden_act)
        load(peer, weights)
        out = peer(torch.from_numpy(ids), output_hidden_states=True)
        m = Module({name: stored(w) for name, w in weights.items()}, taps=Taps())
        hidden, _, pooled = clip_text(m, ids, num_heads, hidden_act, eos=eos)
        assert distance(hidden, out.last_hidden_state) <= 1e-12
        assert distance(pooled, out.pooler_output) <= 1e-12
        for i, want in enumerate(out.hidden_states):
            at = f"text_model.encoder.layers.{i - 1}" if i else "text_model.embeddings"
            assert distance(m.taps[at], want) <= 1e-12, at
        for clip_skip in range(1, size.layers + 1):
            hidden, _, pooled = clip_text(m, ids, num_heads, hidden_act, clip_skip, eos)
            norm = peer.get_submodule(
                "text_model.final_layer_norm" if hasattr(peer, "text_model") else "final_layer_norm"
            )
            assert distance(hidden, norm(out.hidden_states[-clip_skip])) <= 1e-12
            assert distance(pooled, out.pooler_output) <= 1e-12


def peer_clip(size: CLIPSize, num_heads: int, eos: int, hidden_act: str = "quick_gelu") -> CLIPTextModel:
    config = CLIPTextConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_hidden_layers=size.layers,
        num_attention_heads=num_heads,
        max_position_embeddings=size.positions,
        hidden_act=hidden_act,
        bos_token_id=0,
        eos_token_id=eos,
        pad_token_id=eos,
    )
    return CLIPTextModel(config).eval()


def within(peer: CLIPTextModel) -> str:
    """The prefix of everything in the peer; transformers 5 has none."""
    return "text_model." if hasattr(peer, "text_model") else ""


def load(peer: CLIPTextModel, weights: dict[str, np.ndarray]) -> None:
    state = {name.removeprefix("text_model."): torch.from_numpy(w) for name, w in weights.items()}
    peer.load_state_dict({f"{within(peer)}{name}": w for name, w in state.items()})
