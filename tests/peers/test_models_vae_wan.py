"""Wan's and Qwen-Image's autoencoder against diffusers, in float64: one frame and several, and every block."""

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLQwenImage, AutoencoderKLWan
from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.models.vae_wan import decode, encode
from refsd.models.vae_wan.network import (
    LATENTS_MEAN,
    LATENTS_STD,
    WanVAESize,
    wan_vae_keymap,
    wan_vae_shapes,
    wan_vae_size,
)
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

CLASSES = {"qwen-image": AutoencoderKLQwenImage, "wan": AutoencoderKLWan}
# A size, (H, W) of the latent, rows and columns beyond a multiple of the encoder's factor.
CONFIGS = {
    "real depth": (WanVAESize(8, (8, 16, 32, 32), 2, latent_channels=4), (2, 3), (5, 0)),
    "three levels": (WanVAESize(6, (6, 12, 30), 1, (True, True), 3), (3, 2), (0, 1)),
    "two levels": (WanVAESize(10, (10, 10), 3, (False,), 2), (1, 4), (0, 0)),
}


def peer_vae(size: WanVAESize, kind: str = "qwen-image", **config):
    peer = CLASSES[kind](
        base_dim=size.channels,
        z_dim=size.latent_channels,
        dim_mult=[width // size.channels for width in size.widths],
        num_res_blocks=size.res_blocks,
        temperal_downsample=list(size.halves),
        **config,
    )
    return peer.eval()


def keymap(size: WanVAESize):
    levels = len(size.widths)
    return wan_vae_keymap(levels * (size.res_blocks + 1) - 1, levels, size.res_blocks + 1)


def load(peer, size, weights):
    written = keymap(size).write(weights).items()
    peer.load_state_dict({name: torch.from_numpy(w.values().astype(np.float64)) for name, w in written})


def weights_of(peer, size):
    """The peer's tensors under the original names."""
    there = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    sources, unread = keymap(size).sources(there)
    assert not unread
    return {name: source.read(there) for name, source in sources.items()}


def answers(peer, x, z, mean, std):
    """As the pipelines scale latents. diffusers clips the picture, so the decoder is asked for it before that."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1, 1) for values in (mean, std))
    posterior = peer.encode(torch.from_numpy(x)).latent_dist
    frames = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "clamp", lambda y, min, max: frames.append(y) or y)
        peer.decode(torch.from_numpy(z) / (1 / std) + mean)
    return (posterior.mean - mean) * (1 / std), posterior.std / std, frames[-1]


def block_names(size: WanVAESize) -> dict[str, str]:
    """diffusers' name of each block -> the original's."""
    names = {}
    for half in ("encoder", "decoder"):
        names |= {half: half, f"{half}.mid_block": f"{half}.middle"}
        names |= {f"{half}.mid_block.attentions.0": f"{half}.middle.1"}
        names |= {f"{half}.mid_block.resnets.{i}": f"{half}.middle.{2 * i}" for i in (0, 1)}
    levels, blocks = len(size.widths), size.res_blocks + 1
    names |= {f"encoder.down_blocks.{i}": f"encoder.downsamples.{i}" for i in range(levels * blocks - 1)}
    for level in range(levels):
        place, up = level * (blocks + 1), f"decoder.up_blocks.{level}"
        names |= {f"{up}.resnets.{i}": f"decoder.upsamples.{place + i}" for i in range(blocks)}
        if level < levels - 1:
            names[f"{up}.upsamplers.0"] = f"decoder.upsamples.{place + blocks}"
    return names


@pytest.mark.parametrize("frames", [1, 5, 9])
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("name", CONFIGS)
def test_encode_decode_and_every_block(name, kind, frames):
    size, (H, W), (rows, columns) = CONFIGS[name]
    factor, later = 2 ** (len(size.widths) - 1), 2 ** sum(size.halves)
    mean, std = draw((size.latent_channels,), 5), np.exp(draw((size.latent_channels,), 6))
    x = draw((2, 3, frames, H * factor + rows, W * factor + columns), 2)
    z = draw((2, size.latent_channels, 1 + (frames - 1) // 4, H, W), 3)
    with float64_throughout():
        peer = peer_vae(size, kind)
        redraw(peer, 4)
        with outputs_of(peer) as theirs:
            latent, deviation, want = answers(peer, x, z, mean, std)
    weights = weights_of(peer, size)
    assert {name: tensor.shape for name, tensor in weights.items()} == wan_vae_shapes(size)
    assert wan_vae_size(wan_vae_shapes(size)) == size
    m = Module(weights, taps=Taps())
    got, logvar = encode(m, x, mean, std)
    assert got.shape[2] == 1 + (frames - 1) // later
    assert distance(got, latent) <= 1e-12
    assert distance(np.exp(logvar / 2), deviation) <= 1e-12
    got = decode(m, z, mean, std)
    assert distance(got, want) <= 1e-12
    for there, ours in block_names(size).items():
        # diffusers calls a block once for each chunk of frames; the last chunk is the end of ours.
        last = theirs[there].shape[-3] if theirs[there].ndim == 5 else 1
        assert distance(m.taps[ours][:, :, -last:], theirs[there]) <= 1e-12, ours


def test_frames_beyond_the_last_whole_four_are_left_out():
    size = CONFIGS["real depth"][0]
    x = draw((1, 3, 8, 8, 16), 2)
    with float64_throughout():
        peer = peer_vae(size, "wan")
        redraw(peer, 4)
        want = peer.encode(torch.from_numpy(x)).latent_dist.mean
    zeros, ones = np.zeros(size.latent_channels), np.ones(size.latent_channels)
    assert distance(encode(Module(weights_of(peer, size)), x, zeros, ones)[0], want) <= 1e-12


def test_names_are_those_that_diffusers_converts():
    size = WanVAESize(4, (4, 8, 16, 16), 2, latent_channels=2)
    with float64_throughout():
        peer = peer_vae(size)
        redraw(peer, 1)
    theirs = convert_wan_vae_to_diffusers(
        {name: torch.from_numpy(np.array(w.data)) for name, w in weights_of(peer, size).items()}
    )
    state = peer.state_dict()
    assert set(theirs) == set(state)
    assert all(torch.equal(theirs[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("kind", CLASSES)
def test_the_real_one(kind):
    with torch.device("meta"):
        peer = CLASSES[kind]()
    shapes = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    sources, unread = wan_vae_keymap().sources(shapes)
    assert not unread
    assert {name: source.shape(shapes) for name, source in sources.items()} == wan_vae_shapes(WanVAESize())
    assert tuple(peer.config.latents_mean) == LATENTS_MEAN and tuple(peer.config.latents_std) == LATENTS_STD
