"""Qwen2.5-VL's vision tower against transformers, in float64; and the whole model on words and pictures."""

import numpy as np
import pytest
import torch
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw
from test_models_qwen_vl import IMAGE, PEERS, peer_config
from test_models_qwen_vl import weights_of as language_weights
from transformers import Qwen2VLImageProcessor
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

from refsd.models.qwen_vision import patches, qwen2_5_vision
from refsd.models.qwen_vl import qwen2_5_vl, text_and_image_positions
from refsd.models.qwen_vl.network import Qwen25Size
from refsd.module import Module, Taps
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

SIZE = Qwen25Size(72, 3, 6, 2, 12, 33, 50)
SECTIONS = (1, 3, 2)
PATCH, WINDOW, HEADS, WHOLE = 4, 2, 2, (1,)  # peer_config: 112 / 14 / 2 = 4 tokens of the real window, here 2


def peer_model():
    config = peer_config(qwen2_5_vl, SIZE, SECTIONS, 1e6)
    config.vision_config.window_size = WINDOW * 2 * PATCH
    config.vision_config.depth = 3
    config.vision_config.hidden_size = 24  # heads of 12: 3 frequencies an axis
    return PEERS[qwen2_5_vl][1](config)


def peer_tower(tiny):
    """The tower alone, in the size of a module with the names of tiny_qwen_vision.py."""
    config = peer_config(qwen2_5_vl, SIZE, SECTIONS, 1e6).vision_config
    config.window_size, config.patch_size = tiny.WINDOW * 2 * tiny.PATCH, tiny.PATCH
    config.depth, config.hidden_size, config.intermediate_size = tiny.DEPTH, tiny.WIDTH, tiny.MLP
    config.num_heads, config.out_hidden_size, config.fullatt_block_indexes = tiny.HEADS, tiny.OUT, [*tiny.WHOLE]
    return Qwen2_5_VisionTransformerPretrainedModel(config)


def weights_of(tower):
    there = {name: tensor.numpy() for name, tensor in tower.state_dict().items()}
    return {name: stored(y.reshape(len(y), -1) if y.ndim == 5 else y) for name, y in there.items()}


def flat(x):
    """The pictures' patches as transformers takes them: [N * L, 3 * 2 * patch * patch]."""
    return torch.from_numpy(patches(x, PATCH).reshape(-1, 6 * PATCH**2))


def grid(x):
    return torch.tensor([[1, x.shape[2] // PATCH, x.shape[3] // PATCH]] * len(x))


def tower(m, x):
    return qwen2_5_vision(m, x, PATCH, WINDOW, HEADS, WHOLE)


@pytest.mark.parametrize(("high", "wide"), [(24, 40), (16, 16), (8, 56)])
def test_every_block(high, wide):
    """Windows that are whole, cut at the right and at the bottom, and one alone."""
    x = draw((2, 3, high, wide), 1)
    with float64_throughout():
        peer = peer_model().eval().model.visual
        redraw(peer, 2)
        with outputs_of(peer) as blocks:
            want = peer(flat(x), grid_thw=grid(x))
    m = Module(weights_of(peer), taps=Taps())
    got = tower(m, x)
    tokens = (2, high * wide // (2 * PATCH) ** 2, SIZE.hidden)
    assert distance(got, want.pooler_output.reshape(tokens)) <= 1e-12
    assert len(m.taps) == 3 * 3 + 1
    for at, tap in m.taps.items():
        assert distance(tap.reshape(-1, tap.shape[-1]), blocks[at].reshape(-1, tap.shape[-1])) <= 1e-12, at


def test_pictures_are_cut_as_the_processor_cuts_them():
    rng = np.random.default_rng(3)
    processor = Qwen2VLImageProcessor(
        patch_size=PATCH, merge_size=2, temporal_patch_size=2, do_resize=False, do_rescale=False, do_normalize=False
    )
    picture = rng.integers(0, 256, (3, 24, 40)).astype(np.uint8)
    want = processor(torch.from_numpy(picture), return_tensors="pt")
    assert want["image_grid_thw"].tolist() == [[1, 6, 10]]
    got = patches(picture[None].astype(np.float32), PATCH).reshape(-1, 6 * PATCH**2)
    np.testing.assert_array_equal(got, want["pixel_values"].numpy())


def test_words_and_pictures():
    """Two prompts with a picture each, of different lengths, as Qwen-Image-Edit's template has them."""
    x = draw((2, 3, 16, 24), 4)
    ids = np.full((2, 16), 9)
    mask = np.zeros_like(ids)
    for n, words in enumerate(([10, 5, *[IMAGE] * 6, 6, 12, 13, 14], [20, 21, 5, *[IMAGE] * 6, 6, *range(22, 28)])):
        ids[n, : len(words)], mask[n, : len(words)] = words, 1
    with float64_throughout():
        peer = peer_model().eval()
        redraw(peer, 5)
        given = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "pixel_values": flat(x),
            "image_grid_thw": grid(x),
        }
        types = torch.from_numpy((ids == IMAGE).astype(np.int32))
        want = peer(**given, mm_token_type_ids=types, output_hidden_states=True)
        without = peer(**given, output_hidden_states=True)
    tokens = tower(Module(weights_of(peer.model.visual)), x).reshape(-1, SIZE.hidden)
    positions = text_and_image_positions(ids, mask, IMAGE, [(2, 3), (2, 3)])
    m, more = Module(language_weights(peer)), {"pictures": tokens, "image_token": IMAGE, "sections": SECTIONS}
    got = qwen2_5_vl(m, ids, mask, positions, **more)
    for i, (ours, theirs) in enumerate(zip(got, want.hidden_states, strict=True)):
        assert distance(ours, theirs) <= 1e-12, i
    # A caller that does not say which tokens are images, as diffusers 0.42.1, gets each token's number.
    assert distance(qwen2_5_vl(m, ids, mask, **more)[-1], without.hidden_states[-1]) <= 1e-12
    assert distance(got[-1], without.hidden_states[-1]) > 1e-3
