"""LTX-2's video autoencoder against diffusers, in float64: pictures and videos, and every layer."""

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLLTX2Video, AutoencoderKLLTXVideo
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.components import forward, load
from refsd.engines.torch.taps import listening
from refsd.models.vae_ltx2 import decode, encode
from refsd.models.vae_ltx2.network import (
    LTX2_VAE,
    LTX2_VAE_SIZE,
    LTX23_VAE_SIZE,
    LTX_VIDEO_VAE_SIZE,
    LTX2VAESize,
    ltx2_vae_keymap,
    ltx2_vae_shapes,
    ltx2_vae_size,
)
from refsd.models.vae_ltx2.original import ORIGINALS
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import stored
from refsd.weights import open_checkpoint

pytestmark = pytest.mark.peer

# The kinds of steps in another order than the released ones', no two numbers of blocks the same.
SIZE = LTX2VAESize(
    (6, 12, 12, 24, 16), (6, 3, 3, 2), (1, 2, 1, 3, 1), (64, 32, 32, 16, 8), (256, 64, 64, 64), (1, 2, 1, 3, 1), 6
)
TIMED = SIZE._replace(conditioned=True)
LTX23 = LTX2VAESize(
    (5, 10, 10, 20, 20), (5, 5, 5, 5), (1,) * 5, (32, 16, 16, 8, 4), (128, 128, 16, 16), (1,) * 5, 5
)


def peer_vae(size: LTX2VAESize, **config):
    assert LTX2_VAE.folder is not None
    peer = AutoencoderKLLTX2Video.from_config({**LTX2_VAE.folder.config(size), **config})
    redraw(peer, 4)
    with torch.no_grad():
        peer.latents_mean.copy_(torch.from_numpy(draw((size.latent_channels,), 5)))
        peer.latents_std.copy_(torch.from_numpy(np.exp(draw((size.latent_channels,), 6))))
        if size.conditioned:
            peer.decoder.timestep_scale_multiplier.fill_(1000.0)
    return peer.eval()


def sources_of(peer, size: LTX2VAESize):
    there = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    sources, unread = ltx2_vae_keymap(len(size.down), len(size.up)).sources(there)
    assert not unread
    return there, sources


@pytest.fixture(scope="module")
def peers():
    with float64_throughout():
        return {
            "ltx2": (peer_vae(SIZE), SIZE),
            "timed": (peer_vae(TIMED), TIMED),
            "ltx23": (peer_vae(LTX23), LTX23),
        }


def hold(peer, size, half, given: dict[str, Any], **params):
    """Hold refsd's answers and taps against diffusers', and return refsd's."""
    tensors = {name: torch.from_numpy(x) for name, x in given.items()}
    there, sources = sources_of(peer, size)
    original = ORIGINALS[f"ltx2-vae-{half}"]
    with float64_throughout(), outputs_of(peer) as modules, listening(peer, sources) as theirs:
        want = original.run(peer, tensors, params)
    ours = Taps(ops=True)
    m = Module({name: source.read(there) for name, source in sources.items()}, taps=ours)
    y = (encode if half == "encoder" else decode)(m, **given, **params)
    got = dict(zip(want, y if isinstance(y, tuple) else (y,), strict=True))
    for name in want:
        assert distance(got[name], want[name]) <= 1e-12, name
    assert {f"{half}.conv_in.conv", f"{half}.conv_out.conv"} < theirs.keys() <= ours.keys()
    for name in theirs:
        assert distance(ours[name], theirs[name]) <= 1e-12, name
    blocks = {
        "encoder": {"encoder.mid_block": f"encoder.down_blocks.{2 * len(size.down)}"},
        "decoder": {
            "decoder.mid_block": "decoder.up_blocks.0",
            "decoder.up_blocks.1.upsamplers.0": "decoder.up_blocks.3",
            f"decoder.up_blocks.{len(size.up) - 1}": f"decoder.up_blocks.{2 * len(size.up)}",
        },
    }
    for name, mine in blocks[half].items():
        assert distance(ours[mine], modules[name]) <= 1e-12, name
    return got


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mirrors", [False, True])
@pytest.mark.parametrize("frames", [1, 9, 17])
def test_encode_and_every_layer(peers, causal, mirrors, frames):
    x = draw((2, 3, frames, 64, 96), 2)
    got = hold(*peers["ltx2"], "encoder", {"x": x}, encoder_causal=causal, encoder_mirrors=mirrors)
    assert got["mean"].shape == got["logvar"].shape == (2, 6, 1 + frames // 8, 2, 3)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mirrors", [False, True])
@pytest.mark.parametrize("shortcuts", [False, True])
@pytest.mark.parametrize("latents", [1, 2, 3])
def test_decode_and_every_layer(peers, causal, mirrors, shortcuts, latents):
    z = draw((2, 6, latents, 3, 2), 3)
    params = {"decoder_causal": causal, "decoder_mirrors": mirrors, "shortcuts": shortcuts}
    got = hold(*peers["ltx2"], "decoder", {"z": z}, **params)
    assert got["out"].shape == (2, 3, 8 * latents - 7, 96, 64)


@pytest.mark.parametrize("latents", [1, 2])
def test_a_decoder_that_asks_for_the_noise_level(peers, latents):
    z = draw((2, 6, latents, 2, 3), 3)
    answers = [
        hold(*peers["timed"], "decoder", {"z": z, "timesteps": np.array([0.05, last])})["out"]
        for last in (0.025, 0.4)
    ]
    first, second = answers
    assert (first[0] == second[0]).all() and np.abs(first[1] - second[1]).max() > 1e-3


def test_ltx_2_3(peers):
    hold(*peers["ltx23"], "encoder", {"x": draw((2, 3, 9, 32, 64), 2)})
    params = {"decoder_mirrors": False, "shortcuts": False}
    got = hold(*peers["ltx23"], "decoder", {"z": draw((2, 5, 2, 1, 3), 3)}, **params)
    assert got["out"].shape == (2, 3, 9, 32, 96)


def peer_of_ltx_video(size: LTX2VAESize, **config):
    """The class of LTX-Video, as it is made of 0.9.5's files; its encoder's first width is a width of its own."""
    assert LTX2_VAE.folder is not None
    new = "encoder_spatial_padding_mode", "decoder_spatial_padding_mode", "upsample_type", "_class_name"
    given = {name: value for name, value in LTX2_VAE.folder.config(size).items() if name not in new}
    kinds = ["LTXVideo095DownBlock3D"] * len(size.down)
    return AutoencoderKLLTXVideo.from_config(
        {**given, "block_out_channels": list(size.widths), "down_block_types": kinds, **config}
    )


def test_ltx_video(tmp_path):
    """The same network: LTX-2's with zeros around frames. Its folder says nothing of them."""
    size = TIMED._replace(widths=(6, 12, 24, 48), down=(3, 12, 6), res_blocks=(1, 2, 1, 1))
    size = size._replace(decoder=(64, 32, 16, 8), up=(256, 128, 64), decoder_blocks=(1, 2, 1, 3))
    with float64_throughout():
        peer = peer_of_ltx_video(size, downsample_type=["spatial", "temporal", "spatiotemporal"])
        redraw(peer, 4)
        with torch.no_grad():
            peer.latents_mean.copy_(torch.from_numpy(draw((6,), 5)))
            peer.latents_std.copy_(torch.from_numpy(np.exp(draw((6,), 6))))
            peer.decoder.timestep_scale_multiplier.fill_(1000.0)
        peer.eval().save_pretrained(tmp_path / "vae")
        x, z, t = draw((2, 3, 5, 32, 48), 2), draw((2, 6, 2, 2, 3), 3), np.array([0.05, 0.4])
        mean, std = (of[:, None, None, None] for of in (peer.latents_mean, peer.latents_std))
        encoded = (peer.encode(torch.from_numpy(x)).latent_dist.mean - mean) / std
        decoded = peer.decode(torch.from_numpy(z) * std + mean, torch.from_numpy(t)).sample
    checkpoint = open_checkpoint(tmp_path)
    for half, given, want in (("encoder", {"x": x}, encoded), ("decoder", {"z": z, "timesteps": t}, decoded)):
        m, params = load(checkpoint, f"ltx2-vae-{half}", Arithmetic(FLOAT64))
        y = forward(f"ltx2-vae-{half}", m, given, params)
        assert distance(y["mean" if half == "encoder" else "out"], want) <= 1e-12, half


def test_the_released_ltx_video():
    """As 0.9.5's and 0.9.7's are made of Lightricks' files."""
    with torch.device("meta"):
        peer = peer_of_ltx_video(LTX_VIDEO_VAE_SIZE)
    shapes = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    sources, unread = ltx2_vae_keymap().sources(shapes)
    assert not unread
    assert {name: source.shape(shapes) for name, source in sources.items()} == ltx2_vae_shapes(LTX_VIDEO_VAE_SIZE)


@pytest.mark.slow
@pytest.mark.parametrize("size", [LTX2_VAE_SIZE, LTX23_VAE_SIZE])
def test_full_width(size):
    """The released widths, with one residual block each."""
    size = size._replace(res_blocks=(1,) * 5, decoder_blocks=(1,) * len(size.decoder))
    params = {} if size.widths[-1] == 2048 else {"decoder_mirrors": False, "shortcuts": False}
    with float64_throughout():
        peer = peer_vae(size)
    hold(peer, size, "encoder", {"x": draw((1, 3, 1, 32, 64), 2)})
    hold(peer, size, "decoder", {"z": draw((1, 128, 1, 2, 3), 3)}, **params)


@pytest.mark.parametrize("size", [LTX2_VAE_SIZE, LTX_VIDEO_VAE_SIZE, LTX23_VAE_SIZE])
def test_the_real_ones(size):
    """diffusers' defaults are LTX-2's, but for the decoder's sight of later frames."""
    assert LTX2_VAE.folder is not None
    config = LTX2_VAE.folder.config(size)
    with torch.device("meta"):
        peer, usual = AutoencoderKLLTX2Video.from_config(config), AutoencoderKLLTX2Video()
    shapes = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    sources, unread = ltx2_vae_keymap(len(size.down), len(size.up)).sources(shapes)
    assert not unread
    ours = {name: source.shape(shapes) for name, source in sources.items()}
    assert ours == ltx2_vae_shapes(size) and ltx2_vae_size(ours) == size
    if size == LTX2_VAE_SIZE:
        released = {"decoder_causal": False, "spatial_compression_ratio": 32, "temporal_compression_ratio": 8}
        said = {n: list(value) if isinstance(value, tuple) else value for n, value in usual.config.items()}
        assert {n: v for n, v in config.items() if n[0] != "_"} == {
            n: v for n, v in {**said, **released}.items() if n[0] != "_" and n in config
        } | {n: [True] * 4 for n in ("spatio_temporal_scaling",)}
