"""ESRGAN against spandrel's RRDBNet in float64: every scale, each layout of the names, every block."""

import pytest
import torch
from float64_peers import distance, draw, draw_weights, float64_throughout, outputs_of
from spandrel_alone import load_esrgan
from tiny_side_models import esrgan_shapes

from refsd.models.esrgan import rrdbnet
from refsd.models.esrgan.network import esrgan_named, esrgan_numbered
from refsd.module import Module, Taps
from refsd.networks.keymap import Keymap
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

GROW = 32  # spandrel knows no other

# Features, blocks, doublings, pixels made channels, (H, W) in units of those; the scale that comes of it.
SIZES = {
    "x4plus": (64, 2, 2, 1, (5, 3), 4),
    "x2": (10, 2, 1, 1, (4, 7), 2),
    "x1": (8, 2, 0, 1, (2, 9), 1),
    "real-x2plus": (9, 3, 2, 2, (3, 5), 2),
    "real-x1": (6, 2, 2, 4, (3, 2), 1),
}


def layouts(blocks: int, ups: int) -> dict[str, Keymap]:
    return {
        "basicsr": Keymap((), rest_same=True),
        "named": esrgan_named(blocks),
        "numbered": esrgan_numbered(blocks, 2**ups),
    }


@pytest.mark.parametrize("layout", ["basicsr", "named", "numbered"])
@pytest.mark.parametrize("name", SIZES)
def test_spandrel_s_rrdbnet_and_every_block(name, layout):
    feat, blocks, ups, p, (H, W), scale = SIZES[name]
    ours = {name: stored(w) for name, w in draw_weights(esrgan_shapes(feat, GROW, blocks, ups, p), seed=1).items()}
    keymap = layouts(blocks, ups)[layout]
    file = keymap.write(ours)
    x = draw((2, 3, p * H, p * W), 2)
    with float64_throughout():
        peer = load_esrgan({name: torch.from_numpy(w.values().copy()) for name, w in file.items()})
        with outputs_of(peer.model) as theirs:
            want = peer.model(torch.from_numpy(x))
    sources, unread = keymap.sources(file)
    assert not unread
    taps = Taps()
    got = rrdbnet(Module({name: source.read(file) for name, source in sources.items()}, taps=taps), x)
    assert peer.scale == scale
    assert got.shape == (2, 3, scale * p * H, scale * p * W)
    assert distance(got, want) <= 1e-12
    for i in range(blocks):
        assert distance(taps[f"body.{i}"], theirs[f"model.1.sub.{i}"]) <= 1e-12
        for j in (1, 2, 3):
            at = f"body.{i}.rdb{j}", f"model.1.sub.{i}.RDB{j}"
            assert distance(taps[at[0]], theirs[at[1]]) <= 1e-12, at[0]
