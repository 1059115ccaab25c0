"""Krea 2's transformer against diffusers, in float64: the output, and what every block gives on the way."""

import numpy as np
import pytest
import torch
from diffusers import Krea2Transformer2DModel
from diffusers.loaders.single_file_utils import convert_krea2_transformer_checkpoint_to_diffusers
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.models.flux import pack
from refsd.models.krea2 import krea2, token_ids
from refsd.models.krea2.network import krea2_keymap
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# heads, key and value heads, heads of the text; rotary channels; H, W; text lengths of the items
CONFIGS = {
    "real-head": (3, 1, 1, (32, 48, 48), (6, 10), (7, 5)),
    "narrow": (4, 2, 3, (4, 6, 6), (10, 4), (9, 9)),
}
TEXT_HEAD, STATES = 16, 3


def peer_krea2(heads, kv_heads, text_heads, axes, states=STATES, **more) -> Krea2Transformer2DModel:
    return Krea2Transformer2DModel(
        num_layers=2,
        attention_head_dim=sum(axes),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=56,
        timestep_embed_dim=32,
        text_hidden_dim=TEXT_HEAD * text_heads,
        num_text_layers=states,
        text_num_attention_heads=text_heads,
        text_num_key_value_heads=text_heads,
        text_intermediate_size=40,
        num_layerwise_text_blocks=2,
        num_refiner_text_blocks=1,
        axes_dims_rope=axes,
        **more,
    )


@pytest.mark.parametrize("case", CONFIGS)
def test_every_block(case):
    """Padding in the middle of the words, as Krea 2's template has it."""
    heads, kv_heads, text_heads, axes, (H, W), lengths = CONFIGS[case]
    J = max(lengths) + 2
    x, t = draw((2, 16, H, W), 1), np.array([0.8, 0.3])
    context = draw((2, J, STATES, TEXT_HEAD * text_heads), 2)
    mask = np.array([[j < length or j == J - 1 for j in range(J)] for length in lengths])
    with float64_throughout():
        peer = peer_krea2(heads, kv_heads, text_heads, axes).eval()
        redraw(peer, 3)
        with outputs_of(peer) as blocks:
            want = peer(
                torch.from_numpy(pack(x)),
                torch.from_numpy(context),
                torch.from_numpy(t),
                torch.from_numpy(token_ids(J, H, W)),
                torch.from_numpy(mask),
            ).sample
    weights = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    m = Module(weights, taps=Taps())
    got = krea2(m, x, t, context, mask.astype(np.int64), axes)
    assert distance(pack(got), want) <= 1e-12
    assert any("layerwise_blocks.1.attn" in at for at in m.taps) and "final_layer" in m.taps
    for at, tap in m.taps.items():
        assert distance(tap.reshape(-1), blocks[at].reshape(-1)) <= 1e-12, at
    # a token that is masked is not read
    other = np.where(mask[..., None, None], context, 5.0)
    np.testing.assert_allclose(krea2(m, x, t, other, mask, axes), got, rtol=1e-12)


def test_krea_s_own_names():
    """What refsd writes under Krea's names, diffusers reads back."""
    peer = peer_krea2(*CONFIGS["narrow"][:4])
    redraw(peer, 3)
    ours = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    native = {name: torch.from_numpy(t.values()) for name, t in krea2_keymap(2, 2, 1).write(ours).items()}
    back = convert_krea2_transformer_checkpoint_to_diffusers(native)
    assert back.keys() == ours.keys()
    for name, tensor in back.items():
        np.testing.assert_array_equal(tensor, ours[name].values(), name)
