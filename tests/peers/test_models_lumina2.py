"""Lumina 2's transformer against diffusers, in float64: the output, and what every block gives on the way."""

import numpy as np
import pytest
import torch
from diffusers import Lumina2Transformer2DModel
from diffusers.loaders.single_file_utils import convert_lumina2_to_diffusers
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw
from test_models_zimage import weights_of

from refsd.models.lumina2 import lumina2
from refsd.models.lumina2.network import LUMINA2, lumina2_keymap, lumina2_shapes
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

CAPTION = 40
# Captions of equal and of odd, unequal lengths; one longer than the picture. Latents: H != W, odd in tokens.
CONFIGS = {
    "real-head": {"heads": 3, "kv": 1, "axes": (32, 32, 32), "hw": (6, 10), "captions": (7, 7), "depth": (2, 2)},
    "unequal": {"heads": 4, "kv": 2, "axes": (4, 6, 6), "hw": (10, 14), "captions": (5, 37), "depth": (2, 1)},
    "three": {"heads": 2, "kv": 2, "axes": (2, 4, 2), "hw": (4, 2), "captions": (1, 33, 12), "depth": (1, 2)},
}


def peer_lumina2(
    heads, kv, axes, layers, refiners, caption=CAPTION, channels=16, mlp=0, norm_eps=1e-5
) -> Lumina2Transformer2DModel:
    return Lumina2Transformer2DModel(
        in_channels=channels,
        hidden_size=heads * sum(axes),
        num_layers=layers,
        num_refiner_layers=refiners,
        num_attention_heads=heads,
        num_kv_heads=kv,
        multiple_of=16 if not mlp else 1,
        ffn_dim_multiplier=(mlp + 0.5) / (4 * heads * sum(axes)) if mlp else None,
        axes_dim_rope=axes,
        cap_feat_dim=caption,
        norm_eps=norm_eps,
    )


def answer(peer, x, t, context, mask) -> torch.Tensor:
    given = (torch.from_numpy(array) for array in (x, t, context))
    return peer(*given, torch.from_numpy(mask)).sample


@pytest.mark.parametrize("name", CONFIGS)
def test_the_output_and_every_block(name):
    config = CONFIGS[name]
    lengths, (layers, refiners) = np.array(config["captions"]), config["depth"]
    N, J = len(lengths), max(lengths) + 2
    x, context = draw((N, 16, *config["hw"]), 1), draw((N, J, CAPTION), 3)
    t = np.array([0.0, 0.731, 1.0])[:N]
    mask = (np.arange(J) < lengths[:, None]).astype(np.int64)
    with float64_throughout():
        peer = peer_lumina2(*(config[k] for k in ("heads", "kv", "axes")), layers, refiners)
        redraw(peer, 2)
        with outputs_of(peer) as theirs:
            want = answer(peer, x, t, context, mask)
    taps = Taps()
    m = Module(weights_of(peer, lumina2_keymap(layers, refiners, refiners)), taps=taps)
    hidden = np.where(mask[:, :, None] != 0, context, np.nan)  # what follows a caption is never read
    got = lumina2(m, x, t, np.nan_to_num(hidden, nan=9.0), lengths, axes_dim=config["axes"])
    assert distance(got, want) <= 1e-12

    assert distance(taps["t_embedder"], theirs["time_caption_embed.timestep_embedder"]) <= 1e-12
    L, longest = x[0, 0].size // 4, max(lengths)
    parts = ("", ".attention", ".feed_forward")
    for tap in (f"noise_refiner.{i}{part}" for i in range(refiners) for part in parts):
        assert distance(taps[tap], theirs[tap.replace("attention", "attn")]) <= 1e-12, tap
    for i, n in enumerate(lengths):
        for tap in (f"context_refiner.{k}{part}" for k in range(refiners) for part in parts):
            assert distance(taps[tap][i, :n], theirs[tap.replace("attention", "attn")][i, :n]) <= 1e-12, tap
        own = np.r_[:n, longest : longest + L]  # diffusers puts the picture right behind each caption
        for tap in (f"layers.{k}{part}" for k in range(layers) for part in parts):
            there = theirs[tap.replace("attention", "attn")][i, : n + L]
            assert distance(taps[tap][i, own], there) <= 1e-12, tap


def test_all_of_the_context_counts_where_no_length_is_given():
    x, t, context = draw((2, 16, 4, 6), 1), np.array([0.25, 0.5]), draw((2, 9, CAPTION), 2)
    with float64_throughout():
        peer = peer_lumina2(2, 1, (4, 6, 6), 1, 1)
        redraw(peer, 3)
        want = answer(peer, x, t, context, np.ones((2, 9), np.int64))
    m = Module(weights_of(peer, lumina2_keymap(1, 1, 1)))
    assert distance(lumina2(m, x, t, context, axes_dim=(4, 6, 6)), want) <= 1e-12


def test_the_names_are_those_of_single_files():
    """diffusers' own conversion makes of our names, of the released depth and heads, those that it has itself."""
    size = LUMINA2._replace(hidden=2304, mlp=1, layers=3, channels=4, context_dim=1, time_dim=1)
    ours = {name: stored(np.zeros(shape, np.float16)) for name, shape in lumina2_shapes(size).items()}
    checkpoint = {name: torch.tensor(w.data) for name, w in ours.items()}
    checkpoint["norm_final.weight"] = torch.zeros(1)
    converted = convert_lumina2_to_diffusers(checkpoint)
    rows = {name: (2304, 768, 768) for name in ours if "qkv" in name}
    written = lumina2_keymap(3, 2, 2).write(ours, rows)
    assert {name: tuple(tensor.shape) for name, tensor in converted.items()} == {
        name: tensor.shape for name, tensor in written.items()
    }
    with torch.device("meta"):
        peer = Lumina2Transformer2DModel(cap_feat_dim=2304)
    theirs = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    there = lumina2_keymap()
    shapes = lumina2_shapes(LUMINA2)
    assert {name for ours in shapes for name in there.theirs(ours).names} == theirs.keys()
