"""The language models of Qwen2.5-VL and Qwen3-VL against transformers, in float64: every hidden state."""

import gguf
import numpy as np
import pytest
import torch
from float64_peers import distance, float64_throughout, outputs_of, redraw
from test_models_t5 import PADDED, padding
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextModel

from refsd.judges.stage import StageJudge
from refsd.models.qwen3.network import Qwen3Size
from refsd.models.qwen_vl import QWEN2_5_SECTIONS, QWEN3_SECTIONS, qwen2_5_vl, qwen3_vl, text_and_image_positions
from refsd.models.qwen_vl.network import (
    QWEN2_5_VL_7B,
    QWEN3_VL_4B,
    Qwen25Size,
    qwen2_5_vl_gguf_keymap,
    qwen2_5_vl_keymap,
    qwen2_5_vl_shapes,
    qwen3_vl_gguf_keymap,
    qwen3_vl_keymap,
    qwen3_vl_shapes,
)
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import stored
from refsd.stages import STAGES

pytestmark = pytest.mark.peer

IMAGE = 7  # stands for <|image_pad|>
_REAL = (32, 3, 4, 1, 128, 56, 99)
_SMALL = (24, 4, 6, 2, 12, 33, 50)
# Model, size, sections, theta, tokens. 32 channels are less than the heads have together in Qwen3-VL.
CONFIGS = {
    "2.5-real-heads": (qwen2_5_vl, Qwen25Size(512, *_REAL[1:]), QWEN2_5_SECTIONS, 1e6, 37),
    "2.5-grouped": (qwen2_5_vl, Qwen25Size(72, *_SMALL[1:]), (1, 3, 2), 1e6, 65),
    "2.5-one-token": (qwen2_5_vl, Qwen25Size(8, 1, 2, 1, 4, 20, 9), (1, 0, 1), 5e4, 1),
    "3-real-heads": (qwen3_vl, Qwen3Size(*_REAL), QWEN3_SECTIONS, 5e6, 37),
    "3-grouped": (qwen3_vl, Qwen3Size(*_SMALL), (2, 2, 2), 5e6, 65),
    "3-few-rows": (qwen3_vl, Qwen3Size(*_SMALL), (3, 1, 2), 5e4, 13),
}
PEERS = {
    qwen2_5_vl: (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLTextModel),
    qwen3_vl: (Qwen3VLConfig, Qwen3VLForConditionalGeneration, Qwen3VLTextModel),
}
_VISION = {
    qwen2_5_vl: {"fullatt_block_indexes": [1], "window_size": 28},
    qwen3_vl: {"deepstack_visual_indexes": [0], "num_position_embeddings": 16},
}


def peer_config(run, size, sections, theta):
    text = {
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "intermediate_size": size.mlp,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta, "mrope_section": list(sections)},
        "rms_norm_eps": 1e-6,
        "bos_token_id": 0,
        "eos_token_id": 1,
    } | ({"head_dim": size.head_dim} if run is qwen3_vl else {})
    vision = {
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 20,
        "num_heads": 2,
        "patch_size": 4,
        "out_hidden_size": size.hidden,
        **_VISION[run],
    }
    tokens = {"image_token_id": IMAGE, "video_token_id": 8, "vision_start_token_id": 5, "vision_end_token_id": 6}
    return PEERS[run][0](text_config=text, vision_config=vision, **tokens)


def peer_text_model(run, size, sections, theta):
    return PEERS[run][2](peer_config(run, size, sections, theta).text_config)


def weights_of(peer):
    there = {name: stored(tensor.numpy()) for name, tensor in peer.state_dict().items()}
    is_3 = any("q_norm" in name for name in there)
    sources, unread = (qwen3_vl_keymap() if is_3 else qwen2_5_vl_keymap()).sources(there)
    assert all("visual." in name or name == "lm_head.weight" for name in unread)
    return {name: source.read(there) for name, source in sources.items()}


def hold(m, hidden_states, want, blocks, layers):
    assert len(hidden_states) == len(want.hidden_states) == layers + 1
    for i, (got, there) in enumerate(zip(hidden_states, want.hidden_states, strict=True)):
        assert distance(got, there) <= 1e-12, i
    assert len(m.taps) == 3 * layers
    for at, got in m.taps.items():
        assert distance(got, blocks[at.removeprefix("model.").removeprefix("language_model.")]) <= 1e-12, at


@pytest.mark.parametrize("padded", PADDED)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_hidden_state(name, padded):
    run, size, sections, theta, tokens = CONFIGS[name]
    ids = np.random.default_rng(1).integers(0, size.vocab, (3, tokens))
    mask = padding(padded, tokens)
    with float64_throughout():
        peer = peer_text_model(run, size, sections, theta).eval()
        redraw(peer, 2)
        with outputs_of(peer) as blocks:
            given = None if mask is None else torch.from_numpy(mask)
            want = peer(torch.from_numpy(ids), attention_mask=given, output_hidden_states=True, use_cache=False)
    m = Module(weights_of(peer), taps=Taps())
    hold(m, run(m, ids, mask, sections=sections, theta=theta), want, blocks, size.layers)


@pytest.mark.parametrize("name", CONFIGS)
def test_three_different_positions(name):
    run, size, sections, theta, tokens = CONFIGS[name]
    rng = np.random.default_rng(3)
    ids, positions = rng.integers(0, size.vocab, (3, tokens)), rng.integers(0, 90, (3, tokens, 3))
    mask = padding("right", tokens)
    with float64_throughout():
        peer = peer_text_model(run, size, sections, theta).eval()
        redraw(peer, 4)
        with outputs_of(peer) as blocks:
            want = peer(
                torch.from_numpy(ids),
                attention_mask=None if mask is None else torch.from_numpy(mask),
                position_ids=torch.from_numpy(positions.transpose(2, 0, 1).copy()),
                output_hidden_states=True,
                use_cache=False,
            )
    m = Module(weights_of(peer), taps=Taps())
    hold(m, run(m, ids, mask, positions, sections=sections, theta=theta), want, blocks, size.layers)


@pytest.mark.parametrize("name", ["2.5-grouped", "3-grouped"])
def test_the_whole_model_as_a_pipeline_calls_it(name):
    """Its last hidden state is normalised, as Qwen-Image's pipeline takes it; the one that is not is ours too."""
    run, size, sections, theta, tokens = CONFIGS[name]
    ids = np.random.default_rng(5).integers(10, size.vocab, (3, tokens))
    mask = padding("right", tokens)
    with float64_throughout():
        peer = PEERS[run][1](peer_config(run, size, sections, theta)).eval()
        redraw(peer, 6)
        text = peer.model.language_model
        given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        normed = peer(**given, output_hidden_states=True).hidden_states[-1]
        text.config.tie_last_hidden_states = False
        raw = peer(**given, output_hidden_states=True).hidden_states[-1]
    m = Module(weights_of(peer))
    assert distance(run(m, ids, mask, sections=sections, theta=theta)[-1], normed) <= 1e-12
    assert distance(run(m, ids, mask, final_norm=False, sections=sections, theta=theta)[-1], raw) <= 1e-12


def _prompts():
    """Two prompts: two images of 2 x 3 and 3 x 1 patches and their words; and padding, with one of 4 x 2."""
    first = [10, 11, 5, *[IMAGE] * 6, 6, 12, 5, *[IMAGE] * 3, 6, 13, 14]
    second = [20, 5, *[IMAGE] * 8, 6, 21, 22]
    ids = np.full((2, max(len(first), len(second))), 9)
    mask = np.zeros_like(ids)
    for row, of, words in zip(ids, mask, (first, second), strict=True):
        row[: len(words)], of[: len(words)] = words, 1
    return ids, mask, [(2, 3), (3, 1), (4, 2)]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("run", PEERS)
def test_positions_of_words_and_images(run, left):
    ids, mask, grids = _prompts()
    if left:
        n = mask[1].sum()
        ids[1], mask[1] = np.roll(ids[1], -n), np.roll(mask[1], -n)
    size = Qwen25Size(72, *_SMALL[1:]) if run is qwen2_5_vl else Qwen3Size(*_SMALL)
    peer = PEERS[run][1](peer_config(run, size, (2, 2, 2), 1e6)).model
    want, _ = peer.get_rope_index(
        torch.from_numpy(ids),
        torch.from_numpy((ids == IMAGE).astype(np.int32)),
        image_grid_thw=torch.tensor([[1, 2 * rows, 2 * columns] for rows, columns in grids]),
        attention_mask=torch.from_numpy(mask),
    )
    got = text_and_image_positions(ids, mask, IMAGE, grids)
    np.testing.assert_array_equal(got, want.numpy().transpose(1, 2, 0))


@pytest.mark.parametrize("case", STAGES["stage/positions"].cases, ids=lambda case: case.name)
@pytest.mark.parametrize("run", PEERS)
def test_positions_of_the_stage(run, case):
    size = Qwen25Size(72, *_SMALL[1:]) if run is qwen2_5_vl else Qwen3Size(*_SMALL)
    peer = PEERS[run][1](peer_config(run, size, (2, 2, 2), 1e6)).model
    p = case.params
    ids = torch.tensor(p["ids"])
    want, _ = peer.get_rope_index(
        ids,
        (ids == p["image"]).int(),
        image_grid_thw=torch.tensor([[1, 2 * rows, 2 * columns] for rows, columns in p["grids"]]),
        attention_mask=(ids != p["padding"]).int(),
    )
    got = StageJudge().answer(case, case.realize(), Arithmetic(FLOAT64))["positions"]
    np.testing.assert_array_equal(got, want.numpy().transpose(1, 2, 0))


@pytest.mark.parametrize(
    ("run", "size", "shapes", "keymap"),
    [
        (qwen2_5_vl, QWEN2_5_VL_7B, qwen2_5_vl_shapes, qwen2_5_vl_keymap()),
        (qwen3_vl, QWEN3_VL_4B, qwen3_vl_shapes, qwen3_vl_keymap()),
    ],
    ids=["2.5", "3"],
)
def test_the_shapes_of_the_real_one(run, size, shapes, keymap):
    """All names of the whole model are known: those of the language model are read, its vision tower's are not."""
    with torch.device("meta"):
        peer = PEERS[run][1](peer_config(run, size, (24, 20, 20), 5e6))
    there = {name: tuple(tensor.shape) for name, tensor in peer.state_dict().items()}
    sources, unread = keymap.sources(there)
    assert {name: source.shape(there) for name, source in sources.items()} == shapes(size)
    assert all(name.startswith(("model.visual.", "lm_head.")) for name in unread)


@pytest.mark.parametrize(
    ("arch", "keymap", "shapes"),
    [
        (gguf.MODEL_ARCH.QWEN2VL, qwen2_5_vl_gguf_keymap(), qwen2_5_vl_shapes(QWEN2_5_VL_7B)),
        (gguf.MODEL_ARCH.QWEN3VL, qwen3_vl_gguf_keymap(), qwen3_vl_shapes(QWEN3_VL_4B)),
    ],
    ids=["2.5", "3"],
)
def test_names_in_a_gguf(arch, keymap, shapes):
    names = gguf.get_tensor_name_map(arch, 36)
    known = {ours: ours.replace("language_model.", "") for ours in shapes}
    there = {names.get_name(name, try_suffixes=(".weight", ".bias")): ours for ours, name in known.items()}
    sources, unread = keymap.sources(there)
    assert not unread
    assert {source.names[0]: ours for ours, source in sources.items()} == there
