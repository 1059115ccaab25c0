"""Qwen3-VL's vision tower against an answer recorded from transformers in float64, and what must hold besides."""

from pathlib import Path

import numpy as np
import pytest
import tiny_qwen3_vision as tiny
from tiny_models import sampled

from refsd.components import forward
from refsd.models.qwen3_vision import between, positions, qwen3_vision
from refsd.models.qwen3_vision.network import qwen3_vision_gguf_keymap
from refsd.module import Module
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.numerics.tensor import stored
from refsd.weights.config import component_config

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "qwen3_vision.npz")


def run(x=None, numerics=FLOAT64, deepstack=tiny.DEEPSTACK):
    m = Module(tiny.weights(), Arithmetic(numerics))
    return qwen3_vision(m, m.store(tiny.pictures() if x is None else x), tiny.SIZE.patch, tiny.HEADS, deepstack)


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


def test_the_recorded_answer_of_the_peer():
    tokens, deepstack = run()
    assert distance(sampled(tokens), RECORDED["tokens"]) <= 1e-12
    assert deepstack.shape == (2, tiny.SIZE.mergers, 15, tiny.SIZE.out)
    for k in range(tiny.SIZE.mergers):
        assert distance(sampled(deepstack[:, k]), RECORDED[f"deepstack/{k}"]) <= 1e-12


@pytest.mark.jitted
@pytest.mark.parametrize(("profile", "away"), [("float32", 2e-6), ("torch-f16", 4e-3), ("ggml-cpu", 4e-3)])
def test_every_profile_is_near_the_truth(profile, away):
    tokens, deepstack = run(numerics=PROFILES[profile])
    assert tokens.dtype == deepstack.dtype == PROFILES[profile].storage_dtype
    assert 0 < distance(sampled(tokens), RECORDED["tokens"]) <= away
    assert 0 < distance(sampled(deepstack[:, -1]), RECORDED["deepstack/1"]) <= away


def test_the_corners_of_both_grids_coincide():
    """A table whose rows are their row and column gives linear positions from 0 to its last."""
    table = np.stack(np.indices((5, 5)).reshape(2, -1), axis=-1).astype(np.float64)
    m = Module({"pos_embed.weight": stored(table)})
    at = np.array([[0, 0], [0, 9], [5, 0], [5, 9], [2, 3]])
    want = [[0, 0], [0, 4], [4, 0], [4, 4], [2 * 4 / 5, 3 * 4 / 9]]
    np.testing.assert_allclose(positions(m, at, 6, 10), want, rtol=0, atol=1e-14)
    first, share = between(np.arange(5), 5, 5)
    assert first.tolist() == [0, 1, 2, 3, 4] and not share.any()


def test_all_patches_see_each_other():
    x = tiny.pictures().astype(np.float64)
    changed = x.copy()
    changed[:, :, 0, 0] += 1
    assert (np.abs(run(changed)[0] - run(x)[0]).max(axis=2) > 0).all()


def test_the_blocks_that_deepstack_takes():
    """Those before a block do not change with it."""
    first, second = run()[1], run(deepstack=(0, 3))[1]
    np.testing.assert_array_equal(first[:, 0], second[:, 0])
    assert distance(first[:, 1], second[:, 1]) > 1e-3


def test_refusals():
    with pytest.raises(BadInput, match="a picture of 24 x 36 pixels, expected multiples of 8: resize it"):
        run(np.zeros((1, 3, 24, 36)))
    m, x = Module(tiny.weights()), {"x": tiny.pictures()}
    params = {"patch": tiny.SIZE.patch, "num_heads": tiny.HEADS}
    for stack in ([8, 16, 24], [2, 0], [1, 1], [0, 4], [0, -1], ["0", 2]):
        with pytest.raises(BadInput, match=r"deepstack .*2 numbers of blocks below 4, in ascending order"):
            forward("qwen3_vision", m, x, {**params, "deepstack": stack})


def test_config(tmp_path):
    """Without a config the blocks that DeepStack takes are those of the released model of that depth."""
    shapes = {name: tensor.shape for name, tensor in tiny.weights().items()}
    given = {"vision_config": {"num_heads": 4, "deepstack_visual_indexes": [1, 3]}}
    read = component_config("qwen3_vision", tmp_path, shapes, given)
    assert read == {"num_heads": 4, "patch": 4, "deepstack": [1, 3]}
    assert "deepstack" not in component_config("qwen3_vision", tmp_path, shapes, None)
    deep = {**shapes, "blocks.26.norm1.weight": (24,), "deepstack_merger_list.2.norm.weight": (96,)}
    assert component_config("qwen3_vision", tmp_path, deep, None)["deepstack"] == [8, 16, 24]
    for wrong in ([1], [1, 4], [3, 1], "1, 3", [1, 3.0]):
        with pytest.raises(BadInput, match=r"deepstack_visual_indexes is .*; 2 numbers of blocks below 4"):
            component_config("qwen3_vision", tmp_path, shapes, {"deepstack_visual_indexes": wrong})
    with pytest.raises(BadInput, match="hidden_act is 'silu'"):
        component_config("qwen3_vision", tmp_path, shapes, {"hidden_act": "silu"})


def test_a_gguf_numbers_mergers_by_their_blocks():
    theirs = qwen3_vision_gguf_keymap(4, (0, 2)).write(tiny.weights())
    assert theirs["v.deepstack.2.fc1.weight"].shape == (96, 96)
    assert theirs["v.patch_embd.weight"].shape == theirs["v.patch_embd.weight.1"].shape == (24, 3, 4, 4)
    assert len(theirs) == len(tiny.weights()) + 1
