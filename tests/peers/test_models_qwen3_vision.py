"""Qwen3-VL's vision tower against transformers, in float64; and the whole model on words and pictures."""

import gguf
import numpy as np
import pytest
import torch
from float64_peers import distance, draw, float64_throughout, outputs_of, redraw
from test_models_qwen_vision import weights_of
from test_models_qwen_vl import IMAGE, PEERS, peer_config
from test_models_qwen_vl import weights_of as language_weights
from transformers import Qwen2VLImageProcessor
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from refsd.models.qwen3.network import Qwen3Size
from refsd.models.qwen3_vision import qwen3_vision
from refsd.models.qwen3_vision.network import (
    QWEN3_VISION_4B,
    QWEN3_VISION_8B,
    Qwen3VisionSize,
    qwen3_vision_gguf_keymap,
    qwen3_vision_keymap,
    qwen3_vision_shapes,
)
from refsd.models.qwen_vision import patches
from refsd.models.qwen_vl import qwen3_vl, text_and_image_positions
from refsd.module import Module, Taps

pytestmark = pytest.mark.peer

SIZE = Qwen3VisionSize(24, 4, 20, 36, 4, 49, 2)
HEADS, DEEPSTACK = 2, (1, 3)


def peer_tower(size, heads, deepstack):
    config = Qwen3VLVisionConfig(
        depth=size.layers,
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_heads=heads,
        patch_size=size.patch,
        out_hidden_size=size.out,
        num_position_embeddings=size.positions,
        deepstack_visual_indexes=list(deepstack),
    )
    return Qwen3VLVisionModel(config).eval()


def flat(x, patch):
    """The pictures' patches as transformers takes them: [N * L, 3 * 2 * patch * patch]."""
    return torch.from_numpy(patches(x, patch).reshape(-1, 6 * patch**2))


def grids(pictures, patch):
    return torch.tensor([[1, x.shape[2] // patch, x.shape[3] // patch] for x in pictures for _ in x])


@pytest.mark.parametrize(("high", "wide"), [(24, 40), (16, 16), (8, 88)])
def test_every_block(high, wide):
    """More patches than learned positions on an axis, fewer, and one row of tokens."""
    x = draw((2, 3, high, wide), 1)
    with float64_throughout():
        peer = peer_tower(SIZE, HEADS, DEEPSTACK)
        redraw(peer, 2)
        with outputs_of(peer) as blocks:
            want = peer(flat(x, SIZE.patch), grid_thw=grids([x], SIZE.patch))
    m = Module(weights_of(peer), taps=Taps())
    tokens, deepstack = qwen3_vision(m, x, SIZE.patch, HEADS, DEEPSTACK)
    shape = 2, high * wide // (2 * SIZE.patch) ** 2, SIZE.out
    assert distance(tokens, want.pooler_output.reshape(shape)) <= 1e-12
    for k, there in enumerate(want.deepstack_features):
        assert distance(deepstack[:, k], there.reshape(shape)) <= 1e-12, k
    assert len(m.taps) == 3 * SIZE.layers + 1 + len(DEEPSTACK)
    for at, tap in m.taps.items():
        assert distance(tap.reshape(-1), blocks[at].reshape(-1)) <= 1e-12, at


def test_pictures_of_different_sizes():
    """Transformers takes them in one sequence, refsd one after the other."""
    pictures = [draw((1, 3, 24, 40), 1), draw((1, 3, 16, 56), 2)]
    with float64_throughout():
        peer = peer_tower(SIZE, HEADS, DEEPSTACK)
        redraw(peer, 3)
        cut = torch.cat([flat(x, SIZE.patch) for x in pictures])
        want = peer(cut, grid_thw=grids(pictures, SIZE.patch))
    m = Module(weights_of(peer))
    got = [qwen3_vision(m, x, SIZE.patch, HEADS, DEEPSTACK) for x in pictures]
    assert distance(np.concatenate([tokens[0] for tokens, _ in got]), want.pooler_output) <= 1e-12
    for k, there in enumerate(want.deepstack_features):
        assert distance(np.concatenate([deepstack[0, k] for _, deepstack in got]), there) <= 1e-12, k


def test_pictures_are_cut_as_the_processor_cuts_them():
    processor = Qwen2VLImageProcessor(
        patch_size=SIZE.patch, merge_size=2, do_resize=False, do_rescale=False, do_normalize=False
    )
    picture = np.random.default_rng(3).integers(0, 256, (3, 24, 40)).astype(np.uint8)
    want = processor(torch.from_numpy(picture), return_tensors="pt")
    np.testing.assert_array_equal(flat(picture[None].astype(np.float32), SIZE.patch), want["pixel_values"])


@pytest.mark.parametrize("left", [False, True])
def test_words_and_pictures(left):
    """Two prompts, padded on either side: one with pictures of two sizes, one with another; every hidden state."""
    language = Qwen3Size(SIZE.out, 4, 6, 2, 12, 33, 50)
    first = [10, 11, 5, *[IMAGE] * 15, 6, 12, 5, *[IMAGE] * 14, 6, 13, 14]
    second = [20, 5, *[IMAGE] * 8, 6, 21, 22]
    ids = np.full((2, len(first)), 9)
    mask = np.zeros_like(ids)
    for row, seen, words in zip(ids, mask, (first, second), strict=True):
        at = slice(len(row) - len(words), None) if left else slice(0, len(words))
        row[at], seen[at] = words, 1
    pictures = [draw((1, 3, *size), n) for n, size in enumerate(((24, 40), (16, 56), (32, 16)))]
    sections = 2, 2, 2
    config = peer_config(qwen3_vl, language, sections, 5e6)
    for field, value in peer_tower(SIZE, HEADS, DEEPSTACK).config.to_dict().items():
        setattr(config.vision_config, field, value)
    with float64_throughout():
        peer = PEERS[qwen3_vl][1](config).eval()
        redraw(peer, 5)
        peer.model.language_model.config.tie_last_hidden_states = False
        with outputs_of(peer) as blocks:
            want = peer(
                input_ids=torch.from_numpy(ids),
                attention_mask=torch.from_numpy(mask),
                pixel_values=torch.cat([flat(x, SIZE.patch) for x in pictures]),
                image_grid_thw=grids(pictures, SIZE.patch),
                mm_token_type_ids=torch.from_numpy((ids == IMAGE).astype(np.int32)),
                output_hidden_states=True,
            )
    tower = Module(weights_of(peer.model.visual))
    seen = [qwen3_vision(tower, x, SIZE.patch, HEADS, DEEPSTACK) for x in pictures]
    given = {
        "positions": text_and_image_positions(ids, mask, IMAGE, [(3, 5), (2, 7), (4, 2)]),
        "pictures": np.concatenate([tokens[0] for tokens, _ in seen]),
        "deepstack": np.concatenate([deepstack[0] for _, deepstack in seen], axis=1),
        "image_token": IMAGE,
        "sections": sections,
    }
    m = Module(language_weights(peer), taps=Taps())
    raw = qwen3_vl(m, ids, mask, final_norm=False, **given)
    assert len(raw) == len(want.hidden_states) == language.layers + 1
    for i, (ours, theirs) in enumerate(zip(raw, want.hidden_states, strict=True)):
        assert distance(ours, theirs) <= 1e-12, i
    for at, tap in m.taps.items():
        assert distance(tap, blocks[at]) <= 1e-12, at
    normed, last = qwen3_vl(m, ids, mask, **given)[-1], blocks["model.language_model.norm"]
    assert distance(normed, last) <= 1e-12
    assert distance(qwen3_vl(m, ids, mask, **{**given, "deepstack": None})[-1], last) > 1e-3


@pytest.mark.parametrize(
    ("size", "deepstack"), [(QWEN3_VISION_8B, (8, 16, 24)), (QWEN3_VISION_4B, (5, 11, 17))], ids=["8b", "4b"]
)
def test_the_released_sizes(size, deepstack):
    with torch.device("meta"):
        peer = peer_tower(size, 16, deepstack)
    there = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    sources, unread = qwen3_vision_keymap().sources(there)
    assert {name: source.shape(there) for name, source in sources.items()} == qwen3_vision_shapes(size)
    assert not unread


def test_names_in_a_gguf():
    """gguf knows no name of the merger's layers and numbers those of DeepStack's mergers as transformers does."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 27)
    shapes = qwen3_vision_shapes(QWEN3_VISION_8B)
    for ours, source in ((name, qwen3_vision_gguf_keymap(27, range(3)).theirs(name)) for name in shapes):
        assert source is not None
        root = "model.visual" if ours.startswith("deepstack") else "visual"
        theirs = table.get_name(f"{root}.{ours}", try_suffixes=(".weight", ".bias"))
        assert theirs == source.names[0] if theirs else ours.startswith("merger."), ours
