"""Z-Image's transformer against diffusers, in float64: the output, and what every block gives on the way."""

import numpy as np
import pytest
import torch
from diffusers import ZImageTransformer2DModel
from diffusers.loaders.single_file_utils import convert_z_image_transformer_checkpoint_to_diffusers
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.models.zimage import zimage
from refsd.models.zimage.network import zimage_keymap
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# Captions of one batch: their filled lengths equal, unequal, exact multiples of 32. Latents: H != W, odd in tokens,
# an exact multiple of 32 tokens (no pad), more than 32.
CONFIGS = {
    "real-head": {"heads": 2, "axes": (32, 48, 48), "hw": (6, 10), "captions": (7, 7), "layers": 2, "refiners": 2},
    "unequal": {"heads": 3, "axes": (4, 6, 6), "hw": (10, 14), "captions": (5, 37), "layers": 2, "refiners": 1},
    "no-pads": {"heads": 1, "axes": (8, 2, 4), "hw": (8, 16), "captions": (64, 32), "layers": 1, "refiners": 2},
    "same-fill": {"heads": 2, "axes": (2, 4, 2), "hw": (2, 6), "captions": (33, 50), "layers": 1, "refiners": 1},
    "wide": {"heads": 3, "axes": (32, 48, 48), "hw": (4, 2), "captions": (1, 33, 12), "layers": 1, "refiners": 1},
}
CAPTION = 40


def peer_zimage(heads, axes, layers, refiners, caption=CAPTION, channels=16) -> ZImageTransformer2DModel:
    return ZImageTransformer2DModel(
        in_channels=channels,
        dim=heads * sum(axes),
        n_layers=layers,
        n_refiner_layers=refiners,
        n_heads=heads,
        n_kv_heads=heads,
        cap_feat_dim=caption,
        axes_dims=list(axes),
        axes_lens=[256, 64, 64],
    )


def answer(peer, x, t, captions) -> torch.Tensor:
    """Latents [N, C, H, W] and a list of captions, as diffusers wants them. -> [N, C, H, W]"""
    latents = [torch.from_numpy(item)[:, None] for item in x]
    out = peer(latents, torch.from_numpy(t), [torch.from_numpy(caption) for caption in captions]).sample
    return torch.stack([item[:, 0] for item in out])


def batched(captions, rest=np.nan):
    """Captions of different lengths in one array; what stands behind one is never read."""
    context = np.full((len(captions), max(map(len, captions)) + 2, captions[0].shape[1]), rest)
    for row, caption in zip(context, captions, strict=True):
        row[: len(caption)] = caption
    return context, np.array([len(caption) for caption in captions])


def weights_of(peer, keymap):
    there = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    sources, unread = keymap.sources(there)
    assert not unread
    return {name: source.read(there) for name, source in sources.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_output_and_every_block(name):
    config = CONFIGS[name]
    N = len(config["captions"])
    x = draw((N, 16, *config["hw"]), 1)
    t = np.array([0.0, 0.731, 1.0])[:N]
    captions = [draw((n, CAPTION), 10 + i) for i, n in enumerate(config["captions"])]
    with float64_throughout():
        peer = peer_zimage(*(config[k] for k in ("heads", "axes", "layers", "refiners")))
        redraw(peer, 2)
        with outputs_of(peer) as theirs:
            want = answer(peer, x, t, captions)
    taps = Taps()
    keymap = zimage_keymap(config["layers"], config["refiners"])
    m = Module(weights_of(peer, keymap), taps=taps)
    context, lengths = batched(captions)
    got = zimage(m, x, t, context, lengths, axes_dim=config["axes"])
    assert distance(got, want) <= 1e-12

    assert distance(taps["t_embedder"], theirs["t_embedder"]) <= 1e-12
    filled = [-(-n // 32) * 32 for n in lengths]
    L = len(theirs["noise_refiner.0"][0])
    parts = ("", ".attention", ".feed_forward")
    for stack, first, n in (
        ("noise_refiner", L, config["refiners"]),
        ("context_refiner", 0, config["refiners"]),
        ("layers", L, config["layers"]),
    ):
        for tap in (f"{stack}.{i}{part}" for i in range(n) for part in parts):
            for i in range(N):
                own = first + (stack != "noise_refiner") * filled[i]
                assert distance(taps[tap][i, :own], theirs[tap][i, :own]) <= 1e-12, tap
    pixels = config["hw"][0] * config["hw"][1] // 4
    assert distance(taps["final_layer"], theirs["all_final_layer.2-1"][:, :pixels]) <= 1e-12


def test_all_of_the_context_counts_where_no_length_is_given():
    x, t, context = draw((2, 16, 4, 6), 1), np.array([0.25, 0.5]), draw((2, 9, CAPTION), 2)
    with float64_throughout():
        peer = peer_zimage(2, (4, 6, 6), 1, 1)
        redraw(peer, 3)
        want = answer(peer, x, t, list(context))
    m = Module(weights_of(peer, zimage_keymap(1, 1)))
    assert distance(zimage(m, x, t, context, axes_dim=(4, 6, 6)), want) <= 1e-12


def test_the_names_are_those_of_single_files():
    """diffusers' own conversion of a single file makes of our tensors what it has itself."""
    peer = peer_zimage(2, (4, 6, 6), 1, 2)
    redraw(peer, 4)
    ours = weights_of(peer, zimage_keymap(1, 2))
    checkpoint = {f"model.diffusion_model.{name}": torch.tensor(w.values()) for name, w in ours.items()}
    converted = convert_z_image_transformer_checkpoint_to_diffusers(checkpoint)
    theirs = peer.state_dict()
    assert converted.keys() == theirs.keys()
    assert all(torch.equal(converted[name], tensor) for name, tensor in theirs.items())
    written = zimage_keymap(1, 2).write(ours)
    assert written.keys() == theirs.keys()
    assert all(np.array_equal(written[name].values(), tensor.numpy()) for name, tensor in theirs.items())
