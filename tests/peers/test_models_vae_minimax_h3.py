"""MiniMax-H3's video autoencoder against diffusers, in float64: pictures and videos, in tiles, and every layer."""

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLMiniMaxH3
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.engines.torch.taps import listening
from refsd.models.vae_minimax_h3 import decode, encode, frames_of
from refsd.models.vae_minimax_h3.network import (
    LATENTS_MEAN,
    LATENTS_STD,
    MINIMAX_H3_VAE,
    MiniMaxH3VAESize,
    minimax_h3_vae_keymap,
    minimax_h3_vae_shapes,
    minimax_h3_vae_size,
)
from refsd.models.vae_minimax_h3.original import ORIGINALS
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

SIZE = MiniMaxH3VAESize((32, 32, 64, 32, 32, 64), 2, 5, 128, 2, 384, 3)
# Other than the released model's, and than each other.
CONFIG: dict[str, Any] = {"norm_eps": 0.02, "decoder_norm_eps": 0.003, "decoder_rope_theta": 31.0}
PARAMS = {"encoder": {"eps": 0.02}, "decoder": {"theta": 31.0, "decoder_eps": 0.003}}
TILES = {"tile": 48, "overlap": 16}


def peer_vae(size: MiniMaxH3VAESize, **config):
    assert MINIMAX_H3_VAE.folder is not None
    Z = size.latent_channels
    statistics = {"latents_mean": draw((Z,), 5).tolist(), "latents_std": np.exp(draw((Z,), 6)).tolist()}
    peer = AutoencoderKLMiniMaxH3.from_config({**MINIMAX_H3_VAE.folder.config(size), **statistics, **config})
    redraw(peer, 4)
    return peer.eval()


def sources_of(peer, size: MiniMaxH3VAESize):
    there = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    sources, unread = minimax_h3_vae_keymap(size.layers, size.res_blocks).sources(there)
    assert not unread
    return there, sources


@pytest.fixture(scope="module")
def peer():
    with float64_throughout():
        return peer_vae(SIZE, **CONFIG)


def compared(peer, size, half, given, params):
    """Return refsd's answers, diffusers', and the taps and blocks of both."""
    tensors = {name: torch.from_numpy(x) for name, x in given.items()}
    there, sources = sources_of(peer, size)
    original = ORIGINALS[f"minimax-h3-vae-{half}"]
    with float64_throughout(), outputs_of(peer) as modules, listening(peer, sources) as taps:
        want = original.run(peer, tensors, params)
    mine = Taps(ops=True)
    m = Module({name: source.read(there) for name, source in sources.items()}, taps=mine)
    statistics = {name: peer.config[name] for name in ("latents_mean", "latents_std")}
    run = encode if half == "encoder" else decode
    y = run(m, **given, **statistics, **params)
    got = dict(zip(want, y if isinstance(y, tuple) else (y,), strict=True))
    return got, want, mine, taps, modules


def hold(got, want, ours, theirs):
    for name, y in want.items():
        assert distance(got[name], y) <= 1e-12, name
    assert theirs and theirs.keys() <= ours.keys()
    for name, y in theirs.items():
        assert distance(ours[name], y) <= 1e-12, name


# frames of a video -> frames of its latent
@pytest.mark.parametrize(("frames", "latents"), [(1, 1), (3, 2), (5, 2), (22, 7)])
def test_encode_and_every_layer(peer, frames, latents):
    x = draw((2, 3, frames, 48, 32), 2)
    got, want, ours, theirs, modules = compared(peer, SIZE, "encoder", {"x": x}, PARAMS["encoder"])
    assert got["mean"].shape == (2, 5, latents, 3, 2)
    hold(got, want, ours, theirs)
    # Their last call's blocks: those of the last clip.
    again = max(1, -(-frames // 17)) - 1
    for theirs, mine in {"encoder": "encoder", "encoder.down_blocks.2": "encoder.down.2"}.items():
        assert distance(ours[f"{mine}.{again}" if again else mine], modules[theirs]) <= 1e-12


@pytest.mark.parametrize(("latents", "frames"), [(1, 1), (2, 5), (3, 9), (6, 18), (7, 22), (8, 26)])
def test_decode_and_every_layer(peer, latents, frames):
    z = draw((2, 5, latents, 2, 3), 3)
    got, want, ours, theirs, modules = compared(peer, SIZE, "decoder", {"z": z}, PARAMS["decoder"])
    assert got["out"].shape == (2, 3, frames, 32, 48) and frames_of(latents) == frames
    hold(got, want, ours, theirs)
    if latents < 8:
        for i in (0, 1):
            assert (
                distance(ours[f"decoder.transformer_blocks.{i}"], modules[f"decoder.transformer_blocks.{i}"])
                <= 1e-12
            )


# Height and width in latents: one tile and two; three that share unequally; four by two.
@pytest.mark.parametrize(("H", "W"), [(3, 4), (8, 5), (9, 6)])
@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_tiles(peer, half, H, W):
    given = {"x": draw((2, 3, 1, 16 * H, 16 * W), 7)} if half == "encoder" else {"z": draw((2, 5, 3, H, W), 8)}
    got, want, ours, theirs, _ = compared(peer, SIZE, half, given, PARAMS[half] | TILES)
    hold(got, want, ours, theirs)
    whole = compared(peer, SIZE, half, given, PARAMS[half] | {"tile": 256})[0]
    assert all(distance(whole[name], y) > 1e-3 for name, y in want.items())


def test_the_released_tiles_of_256_pixels(peer):
    z = draw((1, 5, 3, 3, 18), 9)
    got, want, ours, theirs, _ = compared(peer, SIZE, "decoder", {"z": z}, PARAMS["decoder"])
    assert "decoder.1" in ours
    hold(got, want, ours, theirs)


@pytest.mark.slow
def test_full_width():
    """The released encoder, and the first of the decoder's 36 blocks with what is around them."""
    size = MiniMaxH3VAESize(layers=1)
    with float64_throughout():
        peer = peer_vae(size)
    for half, given in (
        ("encoder", {"x": draw((1, 3, 1, 32, 48), 2)}),
        ("decoder", {"z": draw((1, 24, 3, 2, 3), 3)}),
    ):
        got, want, ours, theirs, _ = compared(peer, size, half, given, {})
        hold(got, want, ours, theirs)


def test_the_real_one():
    """diffusers' defaults are the released model's."""
    with torch.device("meta"):
        peer = AutoencoderKLMiniMaxH3()
    shapes = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    sources, unread = minimax_h3_vae_keymap().sources(shapes)
    assert not unread
    ours = {name: source.shape(shapes) for name, source in sources.items()}
    assert ours == minimax_h3_vae_shapes(MiniMaxH3VAESize()) and minimax_h3_vae_size(ours) == MiniMaxH3VAESize()
    assert MINIMAX_H3_VAE.folder is not None
    config = MINIMAX_H3_VAE.folder.config(MiniMaxH3VAESize())
    said = {name: list(value) if isinstance(value, tuple) else value for name, value in peer.config.items()}
    assert {name: value for name, value in config.items() if "latents_" not in name and name[0] != "_"} == {
        name: value for name, value in said.items() if name in config and "latents_" not in name and name[0] != "_"
    }
    assert len(LATENTS_MEAN) == len(LATENTS_STD) == 24
