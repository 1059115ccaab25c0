"""MiniMax-H3's transformer against diffusers, in float64: both outputs, and what every layer gives on the way."""

import numpy as np
import pytest
import torch
from diffusers import MiniMaxH3Transformer3DModel
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.engines.torch.taps import listening
from refsd.models.minimax_h3 import conditioning, minimax_h3
from refsd.models.minimax_h3.network import minimax_h3_keymap
from refsd.models.minimax_h3.original import ORIGINALS
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer
EPS = {"eps": 0.02, "qk_eps": 0.003, "final_eps": 0.0004}
# Our name of what a module gives -> diffusers': the blocks, and the norms, which are no taps of the torch engine.
_INSIDE = {"norm1.weight": "norm1", "norm2.weight": "norm2", "attn": "attn", "mlp": "ff", "": ""}
_QK = {"attn.q_norm.weight": "attn.norm_q", "attn.k_norm.weight": "attn.norm_k"}
MODULES = {
    f"{ours}.{i}.{name}".rstrip("."): f"{theirs}.{i}.{other}".rstrip(".")
    for ours, theirs in (
        ("blocks", "transformer_blocks"),
        ("token_refiner.blocks", "token_refiner.refiner_blocks"),
    )
    for i in range(2)
    for name, other in {**_INSIDE, **_QK}.items()
} | {"token_refiner": "token_refiner", "token_refiner.final_norm.weight": "token_refiner.final_norm"}
MODULES |= {"final_layer.norm.weight": "norm_out.norm"}

# heads and their width; frequencies of an axis; F, H, W; words; tokens of the sound; keyframes; words of pictures
CONFIGS = {
    "real-head": (2, 128, 16, (3, 4, 6), 7, 5, (), ()),
    "both-keyframes": (3, 32, 4, (7, 2, 6), 9, 3, ("first", "last"), (1, 4, 6, 7)),
    "last-frame": (1, 32, 5, (2, 6, 4), 5, 4, ("last",), (0, 5)),
    "first-frame": (2, 24, 4, (1, 4, 2), 3, 1, ("first",), ()),
}


def peer_minimax_h3(heads, head_dim, frequencies, layers=2, channels=3, width=20, **more):
    return MiniMaxH3Transformer3DModel(
        num_attention_heads=heads,
        attention_head_dim=head_dim,
        hidden_size=44,
        num_layers=layers,
        num_refiner_layers=2,
        ffn_dim=36,
        in_channels=channels,
        audio_in_channels=5,
        text_dim=width,
        freq_dim=30,
        time_embed_hidden_dim=28,
        time_embed_dim=26,
        rope_freq_dim=frequencies,
        **{name.replace("eps", "norm_eps"): eps for name, eps in EPS.items()},
        **more,
    )


def inputs_of(sizes, words, tokens, keyframes, channels=3, width=20):
    x = {"x": draw((2, channels, *sizes), 1), "timesteps": np.array([0.801, 0.013])}
    x |= {"context": draw((2, words, width), 2), "audio": draw((2, 5, 2, tokens), 3)}
    x |= {which: draw((2, channels, 1, *sizes[1:]), 4 + len(which)) for which in keyframes}
    return {**x, "audio_timesteps": np.array([0.31, 0.9995])}


@pytest.fixture(scope="module", params=CONFIGS)
def compared(request):
    """refsd's weights, inputs, params, and what diffusers answers with its taps."""
    heads, head_dim, frequencies, sizes, words, tokens, keyframes, vision = CONFIGS[request.param]
    inputs, original = inputs_of(sizes, words, tokens, keyframes), ORIGINALS["minimax-h3"]
    if request.param == "first-frame":
        inputs["timesteps"][0] = 0.9996  # later than the keyframe's own time
    given = {name: torch.from_numpy(x) for name, x in inputs.items()}
    with float64_throughout():
        peer = peer_minimax_h3(heads, head_dim, frequencies, rope_theta=500.0).eval()
        redraw(peer, 6)
        theirs = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
        sources, rest = minimax_h3_keymap(2, 2).sources(theirs)
        assert rest == []
        with outputs_of(peer) as modules, listening(peer, sources) as taps:
            want = original.run(peer, given, {"vision": vision})
    weights = {name: source.read(theirs) for name, source in sources.items()}
    params = {"vision": vision, "axes_dim": [2 * frequencies] * 3, "theta": 500.0, **EPS}
    # Of the second item alone: each has a call of its own, and the last one is kept.
    blocks = {ours: modules[theirs] for ours, theirs in MODULES.items()}
    return weights, inputs, params, want, original.laid_out(taps, given), blocks


def test_every_layer(compared):
    weights, inputs, params, want, theirs, blocks = compared
    m = Module(weights, taps=Taps(ops=True))
    for got, name in zip(minimax_h3(m, **inputs, **params), ("out", "audio_out"), strict=True):
        assert distance(got, want[name]) <= 1e-12, name
    assert theirs.keys() <= m.taps.keys()
    assert len(theirs) == 2 * 5 + 2 * 4 + 8  # linear layers of blocks and refiners, and around them
    for name, tap in theirs.items():
        assert distance(m.taps[name], tap) <= 1e-12, name
    for name, tap in blocks.items():
        assert distance(m.taps[name][1:], tap) <= 1e-12, name


def test_a_pruned_file_answers_as_the_whole_one_at_the_rows_of_its_table(compared):
    """The table of the embedded times, after SiLU, has the place of the MLP."""
    weights, inputs, params, *_ = compared
    inputs = {**inputs, "timesteps": np.array([0.75, 0.25]), "audio_timesteps": np.array([0.5, 1.0])}
    params = {**params, "condition_time": 0.875}
    pruned = {name: w for name, w in weights.items() if not name.startswith("time_embedder.")}
    pruned["adaln_t_table"] = stored(conditioning(Module(weights), np.arange(9) / 8))
    answers = (minimax_h3(Module(each), **inputs, **params) for each in (pruned, weights))
    for got, want in zip(*answers, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)
