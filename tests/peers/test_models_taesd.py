"""TAESD against diffusers in float64, both ways and every layer, and against the original's numbering of them."""

import numpy as np
import pytest
import torch
from diffusers import AutoencoderTiny
from float64_peers import distance, draw, draw_weights, float64_throughout, outputs_of
from tiny_side_models import taesd_shapes
from torch import nn

from refsd.models.taesd import decode, encode
from refsd.models.taesd.network import taesd_keymap
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# Channels, latent channels, blocks before each convolution of the encoder, (H, W) of the picture.
CONFIGS = {
    "taesd": (64, 4, (1, 3, 3, 3), (40, 24)),
    "taef1": (64, 16, (1, 3, 3, 3), (19, 33)),
    "uneven": (6, 5, (2, 1, 3, 2), (7, 50)),
    "two-levels": (9, 16, (1, 2), (5, 3)),
}


def peer_taesd(channels: int, latent_channels: int, blocks: tuple[int, ...]) -> AutoencoderTiny:
    return AutoencoderTiny(
        encoder_block_out_channels=(channels,) * len(blocks),
        decoder_block_out_channels=(channels,) * len(blocks),
        latent_channels=latent_channels,
        num_encoder_blocks=blocks,
        num_decoder_blocks=blocks[::-1],
    )


def load(peer: AutoencoderTiny, weights: dict[str, np.ndarray]) -> None:
    state = taesd_keymap().write({name: stored(w) for name, w in weights.items()})
    peer.load_state_dict({name: torch.from_numpy(w.values().copy()) for name, w in state.items()})


@pytest.mark.parametrize("name", CONFIGS)
def test_taesd_and_every_layer(name):
    channels, Z, blocks, (H, W) = CONFIGS[name]
    weights = draw_weights(taesd_shapes(channels, Z, blocks), seed=1)
    m = Module({name: stored(w) for name, w in weights.items()}, taps=Taps())
    x, z = np.abs(draw((2, 3, H, W), 2)), 4 * draw((2, Z, 3, 5), 3)
    with float64_throughout():
        peer = peer_taesd(channels, Z, blocks)
        load(peer, weights)
        with outputs_of(peer) as theirs:
            want_z = peer.encode(torch.from_numpy(2 * x - 1)).latents
            want_x = (peer.decode(torch.from_numpy(z)).sample + 1) / 2
    factor = 2 ** (len(blocks) - 1)
    got_z, got_x = encode(m["encoder"], x), decode(m["decoder"], z)
    assert got_z.shape == (2, Z, -(-H // factor), -(-W // factor))
    assert distance(got_z, want_z) <= 1e-12
    assert distance(got_x, want_x) <= 1e-12
    met = 0
    for at, want in theirs.items():
        half, *layer = at.split(".")
        if len(layer) == 2:
            ours = f"{half}.{int(layer[1]) + (half == 'decoder')}"
            if ours in m.taps:
                met += 1
                assert distance(m.taps[ours], want) <= 1e-12, ours
    assert met == 2 * sum(blocks)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_keymap_reads_diffusers(name):
    channels, Z, blocks, _ = CONFIGS[name]
    peer = peer_taesd(channels, Z, blocks)
    there = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    sources, unread = taesd_keymap().sources(there)
    assert not unread
    found = {name: source.read(there).shape for name, source in sources.items()}
    assert found == taesd_shapes(channels, Z, blocks)


class Clamp(nn.Module):
    def forward(self, x):
        return torch.tanh(x / 3) * 3


class Block(nn.Module):
    def __init__(self, channels: int, pooled: bool = False):
        super().__init__()
        convs = [conv(channels, channels) for _ in range(3)]
        self.conv = nn.Sequential(convs[0], nn.ReLU(), convs[1], nn.ReLU(), convs[2])
        self.pool = pool(channels) if pooled else None

    def forward(self, x):
        x = x if self.pool is None else x + self.pool(x)
        return torch.relu(self.conv(x) + x)


def pool(D: int) -> nn.Sequential:
    widen, narrow = (nn.Conv2d(*ends, 1, bias=False) for ends in ((D, 4 * D), (4 * D, D)))
    return nn.Sequential(widen, nn.GroupNorm(4, 4 * D), nn.ReLU(), narrow)


def conv(inputs: int, outputs: int, **params) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, **params)


def sequentials(D: int, Z: int, pooled: bool) -> tuple[nn.Sequential, nn.Sequential]:
    """The original's encoder and decoder, written anew from the order of their layers."""

    def three(level):
        return [Block(D, pooled and level == 0) for _ in range(3)]

    down = [layer for level in (2, 1, 0) for layer in (conv(D, D, stride=2, bias=False), *three(level))]
    up = [
        layer
        for level in (0, 1, 2)
        for layer in (*three(level), nn.Upsample(scale_factor=2), conv(D, D, bias=False))
    ]
    encoder = nn.Sequential(conv(3, D), Block(D), *down, conv(D, Z))
    return encoder, nn.Sequential(Clamp(), conv(Z, D), nn.ReLU(), *up, Block(D), conv(D, 3))


@pytest.mark.parametrize(("latent_channels", "pooled"), [(4, False), (16, False), (32, True)])
def test_the_original_files_load_as_they_are(latent_channels, pooled):
    x, z = draw((2, 3, 17, 9), 5), draw((2, latent_channels, 2, 3), 6)
    weights = draw_weights(taesd_shapes(12, latent_channels, pooled=pooled), seed=4)
    with float64_throughout():
        for half, peer, run, given in zip(
            ("encoder.", "decoder."),
            sequentials(12, latent_channels, pooled),
            (encode, decode),
            (x, z),
            strict=True,
        ):
            mine = {name.removeprefix(half): w for name, w in weights.items() if name.startswith(half)}
            peer.load_state_dict({name: torch.from_numpy(w) for name, w in mine.items()})
            got = run(Module({name: stored(w) for name, w in mine.items()}), given)
            assert distance(got, peer(torch.from_numpy(given))) <= 1e-12
