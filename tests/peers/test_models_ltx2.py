"""LTX-2's transformer against diffusers, in float64: both outputs, and what every layer gives on the way."""

import numpy as np
import pytest
import torch
from diffusers import LTX2VideoTransformer3DModel
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.engines.torch.taps import listening
from refsd.models.ltx2 import ltx2
from refsd.models.ltx2.network import LTX2, LTX2_NETWORK, LTX23, ltx2_keymap, ltx2_shapes, ltx2_size
from refsd.models.ltx2.original import ORIGINALS
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer
OF_LTX23 = {"gated_attn", "cross_attn_mod", "audio_gated_attn", "audio_cross_attn_mod"}
BETWEEN = ("audio_to_video_attn", "video_to_audio_attn")

# heads and their width of video and sound; is LTX-2.3; F, H, W; words; steps of the sound; params
CONFIGS = {
    "real-heads": (2, 128, 2, 64, False, (3, 2, 4), 7, 5, {}),
    "ltx23": (2, 128, 2, 64, True, (3, 4, 2), 5, 7, {}),
    "frames": (3, 24, 4, 12, True, (5, 2, 3), 3, 4, {"fps": 25.0, "cross_timestep": False, "gate_scale": 0.5}),
    "interleaved": (4, 10, 2, 20, False, (3, 3, 1), 3, 9, {"split": False, "eps": 0.02, "theta": 500.0}),
    "isolated": (2, 16, 1, 20, True, (1, 2, 3), 3, 2, {"isolated": True, "extent": [8, 640, 320]}),
    "values": (2, 16, 2, 10, True, (3, 1, 2), 5, 3, {"values_only": [1], "audio_extent": 30}),
}


def peer_ltx2(heads, head_dim, audio_heads, audio_head_dim, new, params):
    extent, wide, narrow = params.get("extent", [20, 2048, 2048]), heads * head_dim, audio_heads * audio_head_dim
    return LTX2VideoTransformer3DModel(
        in_channels=6,
        out_channels=6,
        num_attention_heads=heads,
        attention_head_dim=head_dim,
        cross_attention_dim=wide,
        pos_embed_max_pos=extent[0],
        base_height=extent[1],
        base_width=extent[2],
        audio_in_channels=10,
        audio_out_channels=10,
        audio_num_attention_heads=audio_heads,
        audio_attention_head_dim=audio_head_dim,
        audio_cross_attention_dim=narrow,
        audio_pos_embed_max_pos=params.get("audio_extent", 20),
        num_layers=2,
        norm_eps=params.get("eps", 1e-6),
        caption_channels=14,
        rope_theta=params.get("theta", 10000.0),
        cross_attn_timestep_scale_multiplier=1000 * params.get("gate_scale", 1.0),
        rope_type="split",
        use_prompt_embeddings=not new,
        perturbed_attn=True,
        **dict.fromkeys(OF_LTX23, new),
    )


def inputs_of(name, wide, narrow, sizes, words, steps):
    x = {"x": draw((2, 6, *sizes), 1), "timesteps": np.array([801.0, 13.0])}
    x |= {"context": draw((2, words, wide), 2), "audio": draw((2, steps, 10), 3)}
    x |= {"audio_timesteps": np.array([310.5, 999.0]), "audio_context": draw((2, words, narrow), 4)}
    times = np.random.default_rng(5).uniform(0, 1000, (2, sizes[0]))
    return {**x, "frame_timesteps": times} if name == "frames" else x


@pytest.fixture(scope="module", params=CONFIGS)
def compared(request):
    """refsd's weights, inputs, params, what diffusers answers, its taps, and what its modules give."""
    *dims, new, sizes, words, steps, more = CONFIGS[request.param]
    wide, narrow = (dims[0] * dims[1], dims[2] * dims[3]) if new else (14, 14)
    inputs, original = inputs_of(request.param, wide, narrow, sizes, words, steps), ORIGINALS["ltx2"]
    params = {"head_dim": dims[1], "audio_head_dim": dims[3], **more}
    given = {name: torch.from_numpy(x) for name, x in inputs.items()}
    with float64_throughout():
        peer = peer_ltx2(*dims, new, params).eval()
        redraw(peer, 6)
        theirs = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
        sources, rest = ltx2_keymap(2).sources(theirs)
        assert rest == []
        with outputs_of(peer) as modules, listening(peer, sources) as taps:
            want = original.run(peer, given, params)
    weights = {name: source.read(theirs) for name, source in sources.items()}
    return weights, inputs, params, want, original.laid_out(taps, given), modules


def test_every_layer(compared):
    weights, inputs, params, want, theirs, modules = compared
    m = Module(weights, taps=Taps(ops=True))
    for got, name in zip(ltx2(m, **inputs, **params), ("out", "audio_out"), strict=True):
        assert distance(got, want[name]) <= 1e-12, name
    assert theirs.keys() <= m.taps.keys()
    for name, tap in theirs.items():
        assert distance(m.taps[name], tap) <= 1e-12, name
    for i in range(2):
        at = f"transformer_blocks.{i}"
        assert distance(m.taps[f"{at}.0"], modules[at]) <= 1e-12
        for part in ("attn1", "attn2", "ff", "audio_attn1", "audio_attn2", "audio_ff", *BETWEEN):
            if part not in BETWEEN or not params.get("isolated"):
                assert distance(m.taps[f"{at}.{part}"], modules[f"{at}.{part}"]) <= 1e-12, part


def test_the_table_of_tensors(compared):
    shapes = {name: weight.shape for name, weight in compared[0].items()}
    assert ltx2_shapes(ltx2_size(shapes)) == shapes


@pytest.mark.parametrize("size", [LTX2, LTX23], ids=["ltx2", "ltx23"])
def test_the_released_sizes(size):
    with torch.device("meta"):
        peer = LTX2VideoTransformer3DModel.from_config(LTX2_NETWORK.folder.config(size))
    there = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    sources, rest = ltx2_keymap().sources(there)
    assert not rest and {name: source.shape(there) for name, source in sources.items()} == ltx2_shapes(size)
