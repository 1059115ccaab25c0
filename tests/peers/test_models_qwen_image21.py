"""Qwen-Image 2.1's transformer against diffusers, in float64: the output, and what every block gives on the way."""

import numpy as np
import pytest
import torch
from diffusers import QwenImage21Transformer2DModel
from diffusers.loaders.single_file_utils import convert_qwen_image21_transformer_checkpoint_to_diffusers
from diffusers.models.transformers.transformer_qwenimage21 import QwenImage21KVCache
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw

from refsd.components import forward
from refsd.engines.torch.models import READERS
from refsd.models.qwen_image21 import qwen_image21
from refsd.models.qwen_image21.network import (
    QWEN_IMAGE21,
    qwen_image21_keymap,
    qwen_image21_shapes,
    qwen_image21_size,
)
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

# heads; rotary channels; H, W; words of the items
CONFIGS = {
    "real-head": (2, (16, 56, 56), (4, 6), (7, 5)),
    "narrow": (3, (4, 6, 6), (6, 2), (9, 9)),
}
CHANNELS, WIDTH = 5, 20


def peer_qwen_image21(heads, axes, channels=CHANNELS, width=WIDTH, layers=2, **more):
    return QwenImage21Transformer2DModel(
        in_channels=channels,
        out_channels=channels,
        num_layers=layers,
        attention_head_dim=sum(axes),
        num_attention_heads=heads,
        context_in_dim=width,
        axes_dims_rope=axes,
        **more,
    ).eval()


def weights_of(peer):
    """Return its weights under refsd's names."""
    theirs = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    sources, rest = qwen_image21_keymap(len(peer.transformer_blocks)).sources(theirs)
    assert not rest
    return {name: source.read(theirs) for name, source in sources.items()}


def asked(x, t, context, mask=None, references=(), places=()):
    """Return the arguments that diffusers' pipeline gives."""
    N, _, H, W = x.shape
    slots = torch.arange(context.shape[1] + H * W // 4) >= context.shape[1]
    for first, (h, w) in zip(places, (picture.shape[2:] for picture in references), strict=True):
        slots[first : first + h * w // 4] = True
    pictures = [torch.from_numpy(picture) for picture in (*references, x)]
    return {
        "hidden_states": torch.cat([picture.flatten(2).transpose(1, 2) for picture in pictures], dim=1),
        "encoder_hidden_states": torch.from_numpy(context),
        "timestep": torch.from_numpy(t),
        "img_shapes": [[(1, *picture.shape[2:]) for picture in pictures]] * N,
        "img_mask": slots.expand(N, -1),
        "encoder_hidden_states_mask": None if mask is None else torch.from_numpy(mask),
    }


def picture_of(tokens, shape):
    N, C, H, W = shape
    return tokens[:, -H * W :].transpose(1, 2).reshape(N, C, H, W)


@pytest.mark.parametrize("case", CONFIGS)
def test_every_block(case):
    """In a batch the shorter prompt is padded on the right, and the padding takes positions."""
    heads, axes, (H, W), lengths = CONFIGS[case]
    J = max(lengths)
    x, t, context = draw((2, CHANNELS, H, W), 1), np.array([0.8, 0.3]), draw((2, J, WIDTH), 2)
    mask = np.arange(J) < np.array(lengths)[:, None]
    with float64_throughout():
        peer = peer_qwen_image21(heads, axes)
        redraw(peer, 3)
        with outputs_of(peer) as blocks:
            want = picture_of(peer(**asked(x, t, context, mask)).sample, x.shape)
    m = Module(weights_of(peer), taps=Taps())
    got = qwen_image21(m, x, t, context, mask.astype(np.int64), axes_dim=axes)
    assert distance(got, want) <= 1e-12
    blocks["norm_out"] = blocks["norm_out"][:, J:]
    assert {"transformer_blocks.1.attn", "transformer_blocks.1.img_mlp", "txt_in", "norm_out"} <= m.taps.keys()
    for at, tap in m.taps.items():
        if at != "qwen_image21":
            assert distance(tap.reshape(-1), blocks[at].reshape(-1)) <= 1e-12, at
    # a word that is masked is not read
    other = np.where(mask[..., None], context, 5.0)
    np.testing.assert_allclose(qwen_image21(m, x, t, other, mask, axes_dim=axes), got, rtol=1e-12)


# Sizes of the references, their places among 31 words: with words around each, one after the other, at both ends.
EDITS = {
    "apart": ([(6, 8), (2, 6)], [3, 17]),
    "adjacent": ([(2, 4), (6, 4), (4, 4)], [1, 3, 9]),
    "first and last": ([(8, 2), (4, 10)], [0, 21]),
    "one of three rows": ([(6, 6)], [5]),
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("padded", [False, True])
def test_references(edit, padded):
    """Each block with pictures to edit among the words; the second prompt may be shorter."""
    sizes, places = EDITS[edit]
    heads, axes, (H, W), _ = CONFIGS["real-head"]
    x, t, context = draw((2, CHANNELS, H, W), 1), np.array([0.8, 0.3]), draw((2, 31, WIDTH), 2)
    references = [draw((2, CHANNELS, *size), 3 + n) for n, size in enumerate(sizes)]
    last = max(first + h * w // 4 for first, (h, w) in zip(places, sizes, strict=True))
    mask = np.arange(31) < np.array([31, min(31, last + 4)])[:, None] if padded else None
    with float64_throughout():
        peer = peer_qwen_image21(heads, axes)
        redraw(peer, 3)
        with outputs_of(peer) as blocks:
            want = picture_of(peer(**asked(x, t, context, mask, references, places)).sample, x.shape)
    m = Module(weights_of(peer), taps=Taps())
    got = qwen_image21(m, x, t, context, mask, references, places, axes)
    assert distance(got, want) <= 1e-12
    blocks["norm_out"] = blocks["norm_out"][:, -H * W :]
    for at, tap in m.taps.items():
        assert distance(tap.reshape(-1), blocks[at].reshape(-1)) <= 1e-12, at
    # the words that stand for a reference are not read
    for first, (h, w) in zip(places, sizes, strict=True):
        context[:, first : first + h * w // 4] = 5.0
    np.testing.assert_allclose(qwen_image21(m, x, t, context, mask, references, places, axes), got, rtol=1e-12)


def test_a_call_with_references_is_read():
    """What refsd watch makes of the arguments of diffusers' call."""
    sizes, places = EDITS["adjacent"]
    heads, axes, (H, W), _ = CONFIGS["narrow"]
    x, t, context = draw((2, CHANNELS, H, W), 1), np.array([0.8, 0.3]), draw((2, 31, WIDTH), 2)
    references = [draw((2, CHANNELS, *size), 3 + n) for n, size in enumerate(sizes)]
    with float64_throughout():
        peer = peer_qwen_image21(heads, axes)
        redraw(peer, 3)
        call = asked(x, t, context, None, references, places)
        arguments = READERS["QwenImage21Transformer2DModel"][0].read(peer, call)
        want = arguments.outputs(peer(**call))["out"]
    assert arguments.params == {"places": places}
    inputs = {name: tensor.numpy() for name, tensor in arguments.inputs.items()}
    params = {**arguments.params, "axes_dim": [*axes]}
    assert distance(forward("qwen-image21", Module(weights_of(peer)), inputs, params)["out"], want) <= 1e-12


def test_cached_steps():
    """The first step at another time fills diffusers' cache, the second reads it: refsd computes all anew."""
    heads, axes, (H, W), _ = CONFIGS["narrow"]
    x, context = draw((2, CHANNELS, H, W), 1), draw((2, 7, WIDTH), 2)
    with float64_throughout():
        peer = peer_qwen_image21(heads, axes)
        redraw(peer, 3)
        cache = QwenImage21KVCache(2)
        peer(**asked(x, np.array([1.0, 1.0]), context), kv_cache=cache, kv_cache_mode="extract")
        given = asked(2 * x, np.array([0.4, 0.1]), context)
        want = picture_of(peer(**given, kv_cache=cache, kv_cache_mode="cached").sample, x.shape)
    got = qwen_image21(Module(weights_of(peer)), 2 * x, np.array([0.4, 0.1]), context, axes_dim=axes)
    assert distance(got, want) <= 1e-12


def test_comfyui_s_names():
    """What refsd names as ComfyUI does, diffusers reads back; all shapes are inferred from these names."""
    peer = peer_qwen_image21(*CONFIGS["narrow"][:2])
    redraw(peer, 3)
    ours = weights_of(peer)
    shapes = {name: tensor.shape for name, tensor in ours.items()}
    assert qwen_image21_shapes(qwen_image21_size(shapes)) == shapes
    one_file = {f"model.diffusion_model.{name}": torch.from_numpy(t.values()) for name, t in ours.items()}
    back = convert_qwen_image21_transformer_checkpoint_to_diffusers(one_file)
    assert back.keys() == peer.state_dict().keys()
    for name, tensor in peer.state_dict().items():
        assert torch.equal(back[name], tensor), name


def test_the_released_size():
    with torch.device("meta"):
        peer = QwenImage21Transformer2DModel()
    ours = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    sources, rest = qwen_image21_keymap(32).sources(ours)
    assert {name: source.shape(ours) for name, source in sources.items()} == qwen_image21_shapes(QWEN_IMAGE21)
    assert not rest
