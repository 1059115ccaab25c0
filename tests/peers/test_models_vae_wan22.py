"""Wan 2.2's autoencoder against diffusers, in float64: one frame and several, and every block."""

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw
from test_models_vae_wan import answers

from refsd.models.vae_wan import decode_wan22, encode_wan22
from refsd.models.vae_wan.latents import WAN22_LATENTS_MEAN, WAN22_LATENTS_STD
from refsd.models.vae_wan.wan22 import WAN22_VAE, Wan22VAESize, wan22_vae_keymap, wan22_vae_shapes, wan22_vae_size
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# A size, and (H, W) of the latent.
CONFIGS = {
    "real depth": (Wan22VAESize(4, (4, 8, 16, 16), (6, 12, 24, 24), 2, latent_channels=5), (2, 3)),
    "frames halved first": (Wan22VAESize(6, (6, 12, 12), (4, 8, 8), 1, (True, True), 3), (3, 2)),
    "two levels": (Wan22VAESize(10, (10, 10), (6, 6), 3, (False,), 2), (1, 4)),
}


def peer_vae(size: Wan22VAESize):
    assert WAN22_VAE.folder is not None
    config = dict(WAN22_VAE.folder.config(size))
    config |= {"latents_mean": [0.25] * size.latent_channels, "latents_std": [2.0] * size.latent_channels}
    return AutoencoderKLWan.from_config(config).eval()


def keymap(size: Wan22VAESize):
    return wan22_vae_keymap(len(size.widths), size.res_blocks, size.res_blocks + 1)


def load(peer, size, weights):
    written = keymap(size).write(weights).items()
    peer.load_state_dict({name: torch.from_numpy(w.values().astype(np.float64)) for name, w in written})


def weights_of(peer, size):
    """The peer's tensors under the original names."""
    there = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    sources, unread = keymap(size).sources(there)
    assert not unread
    return {name: source.read(there) for name, source in sources.items()}


def block_names(size: Wan22VAESize) -> dict[str, str]:
    """diffusers' name of each block -> the original's."""
    names, last = {}, len(size.widths) - 1
    for half, way, blocks in (("encoder", "down", size.res_blocks), ("decoder", "up", size.res_blocks + 1)):
        names |= {half: half, f"{half}.mid_block": f"{half}.middle"}
        names |= {f"{half}.mid_block.attentions.0": f"{half}.middle.1"}
        names |= {f"{half}.mid_block.resnets.{i}": f"{half}.middle.{2 * i}" for i in (0, 1)}
        for level in range(last + 1):
            ours, theirs = f"{half}.{way}samples.{level}", f"{half}.{way}_blocks.{level}"
            names[theirs] = ours
            names |= {f"{theirs}.resnets.{i}": f"{ours}.{way}samples.{i}" for i in range(blocks)}
            if level < last:
                names[f"{theirs}.{way}sampler"] = f"{ours}.{way}samples.{blocks}"
    return names


@pytest.mark.parametrize(
    ("name", "frames"),
    [
        *((name, frames) for name in CONFIGS for frames in (1, 5, 9)),
        pytest.param("released", 5, marks=pytest.mark.slow),  # 704,688,668 parameters, 5.6 GB
    ],
)
def test_encode_decode_and_every_block(name, frames):
    size, (H, W) = CONFIGS.get(name, (Wan22VAESize(), (2, 3)))
    factor, later = 2 ** len(size.widths), 2 ** sum(size.halves)
    mean, std = draw((size.latent_channels,), 5), np.exp(draw((size.latent_channels,), 6))
    x = draw((2, 3, frames, H * factor, W * factor), 2)
    z = draw((2, size.latent_channels, 1 + (frames - 1) // 4, H, W), 3)
    with float64_throughout():
        peer = peer_vae(size)
        redraw(peer, 4)
        with outputs_of(peer) as theirs:
            latent, deviation, want = answers(peer, x, z, mean, std)
    weights = weights_of(peer, size)
    assert {name: tensor.shape for name, tensor in weights.items()} == wan22_vae_shapes(size)
    assert wan22_vae_size(wan22_vae_shapes(size)) == size
    m = Module(weights, taps=Taps())
    got, logvar = encode_wan22(m, x, mean, std)
    assert got.shape[2] == 1 + (frames - 1) // later
    assert distance(got, latent) <= 1e-12
    assert distance(np.exp(logvar / 2), deviation) <= 1e-12
    assert distance(decode_wan22(m, z, mean, std), want) <= 1e-12
    for there, ours in block_names(size).items():
        # diffusers calls a block once for each chunk of frames; the last chunk is the end of ours.
        last = theirs[there].shape[-3] if theirs[there].ndim == 5 else 1
        assert distance(m.taps[ours][:, :, -last:], theirs[there]) <= 1e-12, ours


def test_frames_beyond_the_last_whole_four_are_left_out():
    size = CONFIGS["real depth"][0]
    x = draw((1, 3, 8, 16, 32), 2)
    with float64_throughout():
        peer = peer_vae(size)
        redraw(peer, 4)
        want = peer.encode(torch.from_numpy(x)).latent_dist.mean
    zeros, ones = np.zeros(size.latent_channels), np.ones(size.latent_channels)
    assert distance(encode_wan22(Module(weights_of(peer, size)), x, zeros, ones)[0], want) <= 1e-12


def test_the_real_one():
    """Its config.json is diffusers' own, of the script that converts the original's file."""
    with torch.device("meta"):
        peer = peer_vae(Wan22VAESize())
    shapes = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    sources, unread = wan22_vae_keymap().sources(shapes)
    assert not unread
    assert {name: source.shape(shapes) for name, source in sources.items()} == wan22_vae_shapes(Wan22VAESize())
    assert (peer.config.scale_factor_spatial, peer.config.scale_factor_temporal) == (16, 4)
    assert len(WAN22_LATENTS_MEAN) == len(WAN22_LATENTS_STD) == 48
