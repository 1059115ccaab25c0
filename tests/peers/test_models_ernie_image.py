"""Ernie-Image's transformer against diffusers, in float64: the output, and what every block gives on the way."""

import numpy as np
import pytest
import torch
from diffusers import ErnieImageTransformer2DModel
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.models.ernie_image import ernie_image
from refsd.models.ernie_image.original import _taps
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# heads; rotary channels; H, W; text lengths of the items; width of the text
CONFIGS = {
    "real-head": (2, (32, 48, 48), (3, 5), (7, 5), 40),
    "narrow": (3, (4, 6, 6), (5, 2), (9, 1), 24),
    "column": (1, (8, 4, 4), (1, 6), (3, 3), 7),
}


def peer_ernie_image(heads, axes, width, channels=8, layers=2, **more) -> ErnieImageTransformer2DModel:
    return ErnieImageTransformer2DModel(
        hidden_size=heads * sum(axes),
        num_attention_heads=heads,
        num_layers=layers,
        ffn_hidden_size=72,
        in_channels=channels,
        out_channels=channels,
        text_in_dim=width,
        rope_axes_dim=axes,
        **more,
    )


@pytest.mark.parametrize("case", CONFIGS)
def test_every_block(case):
    heads, axes, (H, W), lengths, width = CONFIGS[case]
    J = max(lengths)
    x, t, context = draw((2, 8, H, W), 1), np.array([0.801, 0.013]), draw((2, J, width), 2)
    with float64_throughout():
        peer = peer_ernie_image(heads, axes, width).eval()
        redraw(peer, 3)
        with outputs_of(peer) as blocks:
            want = peer(
                torch.from_numpy(x), torch.from_numpy(1000 * t), torch.from_numpy(context), torch.tensor(lengths)
            ).sample
    m = Module({name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}, taps=Taps())
    got = ernie_image(m, x, t, context, lengths, axes)
    assert distance(got, want) <= 1e-12
    theirs = _taps(blocks, {})
    assert len(m.taps) == 2 * 3 + 2
    for at, tap in m.taps.items():
        assert distance(tap, theirs[at]) <= 1e-12, at
    # what follows a prompt's end is not read
    other = np.where(np.arange(J)[None, :, None] < np.array(lengths)[:, None, None], context, 5.0)
    np.testing.assert_allclose(ernie_image(m, x, t, other, lengths, axes), got, rtol=1e-12)
