"""ESRGAN against plain torch, in float64.

The peers below are written anew from the architecture of BasicSR's rrdbnet_arch.py and, for the old numbering, of
the nn.Sequential of ESRGAN's first release: for widths that spandrel's cannot have, and for the fixture.
"""

import numpy as np
import pytest
import torch
from float64_peers import distance, draw, draw_weights, float64_throughout, outputs_of
from tiny_side_models import esrgan_shapes
from torch import nn
from torch.nn import functional as F

from refsd.models.esrgan import rrdbnet
from refsd.models.esrgan.network import esrgan_named, esrgan_numbered
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer


def conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


class DenseBlock(nn.Module):
    """numbered: every convolution stands in an nn.Sequential with its activation, as in the first release."""

    def __init__(self, feat: int, grow: int, numbered: bool):
        super().__init__()
        for k in range(1, 6):
            layer = conv(feat + (k - 1) * grow, feat if k == 5 else grow)
            setattr(self, f"conv{k}", nn.Sequential(layer) if numbered else layer)

    def forward(self, x):
        outs = [x]
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            outs.append(F.leaky_relu(layer(torch.cat(outs, 1)), 0.2))
        return x + 0.2 * self.conv5(torch.cat(outs, 1))


class RRDB(nn.Module):
    def __init__(self, feat: int, grow: int, names: str, numbered: bool = False):
        super().__init__()
        self.names = [f"{names}{j}" for j in (1, 2, 3)]
        for name in self.names:
            setattr(self, name, DenseBlock(feat, grow, numbered))

    def forward(self, x):
        h = x
        for name in self.names:
            h = getattr(self, name)(h)
        return x + 0.2 * h


class RRDBNet(nn.Module):
    """BasicSR's: always two doublings, and p x p pixels made channels first."""

    def __init__(self, feat: int, grow: int, blocks: int, p: int):
        super().__init__()
        self.p = p
        self.conv_first = conv(3 * p * p, feat)
        self.body = nn.Sequential(*(RRDB(feat, grow, "rdb") for _ in range(blocks)))
        self.conv_body, self.conv_up1, self.conv_up2, self.conv_hr = (conv(feat, feat) for _ in range(4))
        self.conv_last = conv(feat, 3)

    def forward(self, x):
        feat = self.conv_first(F.pixel_unshuffle(x, self.p))
        feat = feat + self.conv_body(self.body(feat))
        for up in (self.conv_up1, self.conv_up2):
            feat = F.leaky_relu(up(F.interpolate(feat, scale_factor=2, mode="nearest")), 0.2)
        return self.conv_last(F.leaky_relu(self.conv_hr(feat), 0.2))


class Shortcut(nn.Module):
    def __init__(self, sub: nn.Sequential):
        super().__init__()
        self.sub = sub

    def forward(self, x):
        return x + self.sub(x)


class NumberedRRDBNet(nn.Module):
    """The first release's: one nn.Sequential, with as many doublings as the scale asks for."""

    def __init__(self, feat: int, grow: int, blocks: int, ups: int):
        super().__init__()
        trunk = nn.Sequential(*(RRDB(feat, grow, "RDB", numbered=True) for _ in range(blocks)), conv(feat, feat))
        doublings = [
            layer
            for _ in range(ups)
            for layer in (nn.Upsample(scale_factor=2, mode="nearest"), conv(feat, feat), nn.LeakyReLU(0.2))
        ]
        ends = (conv(feat, feat), nn.LeakyReLU(0.2), conv(feat, 3))
        self.model = nn.Sequential(conv(3, feat), Shortcut(trunk), *doublings, *ends)

    def forward(self, x):
        return self.model(x)


def tensors(arrays):
    return {name: torch.from_numpy(np.array(w)) for name, w in arrays.items()}


# Features, growth, blocks, pixels made channels, (H, W) in units of those.
REAL = {
    "x4plus": (64, 32, 2, 1, (7, 4)),
    "anime": (64, 32, 1, 1, (1, 9)),
    "x2plus": (24, 8, 3, 2, (5, 3)),
    "x1": (10, 7, 1, 4, (3, 2)),
}


@pytest.mark.parametrize("name", REAL)
def test_real_esrgan_and_every_block(name):
    feat, grow, blocks, p, (H, W) = REAL[name]
    weights = draw_weights(esrgan_shapes(feat, grow, blocks, ups=2, unshuffle=p), seed=1)
    x = draw((2, 3, p * H, p * W), 2)
    m = Module({name: stored(w) for name, w in weights.items()}, taps=Taps())
    with float64_throughout():
        peer = RRDBNet(feat, grow, blocks, p)
        peer.load_state_dict(tensors(weights))
        with outputs_of(peer) as theirs:
            want = peer(torch.from_numpy(x))
    got = rrdbnet(m, x)
    assert got.shape == (2, 3, 4 * H, 4 * W)
    assert distance(got, want) <= 1e-12
    assert len(m.taps) == 4 * blocks
    for at, tap in m.taps.items():
        assert distance(tap, theirs[at]) <= 1e-12, at


@pytest.mark.parametrize("ups", [0, 1, 2])
@pytest.mark.parametrize("blocks", [1, 3])
def test_the_numbered_layout(ups, blocks):
    weights = draw_weights(esrgan_shapes(12, 5, blocks, ups), seed=3)
    keymap = esrgan_numbered(blocks, 2**ups)
    there = keymap.write({name: stored(w) for name, w in weights.items()})
    x = draw((2, 3, 6, 5), 4)
    with float64_throughout():
        peer = NumberedRRDBNet(12, 5, blocks, ups)
        peer.load_state_dict(tensors({name: w.values() for name, w in there.items()}))
        want = peer(torch.from_numpy(x))
    sources, unread = keymap.sources(there)
    assert not unread
    assert distance(rrdbnet(Module({name: s.read(there) for name, s in sources.items()}), x), want) <= 1e-12


def test_the_named_layout_knows_every_tensor():
    shapes = esrgan_shapes(4, 2, 2, ups=2)
    keymap = esrgan_named(blocks=2)
    there = keymap.write({name: stored(w) for name, w in draw_weights(shapes, seed=5).items()})
    assert {"RRDB_trunk.1.RDB3.conv5.bias", "trunk_conv.weight", "upconv2.bias", "HRconv.weight"} <= set(there)
    sources, unread = keymap.sources(there)
    assert not unread
    assert set(sources) == set(shapes)
