"""Stable Diffusion 3's and 3.5's transformers against answers recorded from diffusers in float64."""

from pathlib import Path

import numpy as np
import pytest
import tiny_mmdit as tiny
from tiny_models import sampled

from refsd.golden.recipe import Recipe, realize
from refsd.models.mmdit import mmdit
from refsd.models.mmdit.network import mmdit_keymap
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.numerics.tensor import StoredTensor

RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "mmdit.npz")


def run(name, weights=None, taps=None, numerics=FLOAT64, skip_layers=(), **inputs):
    arithmetic = Arithmetic(numerics)
    m = Module(weights or tiny.weights(name), arithmetic, taps=taps)
    given = {**tiny.inputs(name), **inputs}
    given |= {key: arithmetic.store(given[key]) for key in ("x", "context", "y")}
    return mmdit(m, **given, head_dim=tiny.TINY[name].head_dim, skip_layers=skip_layers)


def distance(got, want):
    return np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want)


@pytest.mark.parametrize("name", tiny.TINY)
def test_the_recorded_answers_of_diffusers(name):
    taps = Taps()
    v = run(name, taps=taps)
    assert v.shape == RECORDED[f"{name}/v"].shape
    assert distance(v, RECORDED[f"{name}/v"]) <= 1e-12
    streams = [key for key in RECORDED.files if key.startswith(f"{name}/joint_blocks")]
    assert len(streams) == 2 * tiny.TINY[name].blocks - 1
    for key in streams:
        assert distance(sampled(taps[key.split("/")[1]]), RECORDED[key]) <= 1e-12, key


# What a profile may be away from the truth: a few times what it measures here. float32 loses most of it
# where an angle of 981 radians is rounded; at timestep 12 it measures 7e-7.
AWAY = {"float32": 4e-5, "torch-f16": 5e-3, "torch-bf16": 5e-2, "ggml-cpu": 1e-3}


@pytest.mark.jitted
@pytest.mark.parametrize("profile", AWAY)
@pytest.mark.parametrize("name", tiny.TINY)
def test_profiles_run_near_the_truth(name, profile):
    v = run(name, numerics=PROFILES[profile])
    assert v.dtype == PROFILES[profile].storage_dtype
    assert 0 < distance(v, RECORDED[f"{name}/v"]) <= AWAY[profile]


class Read(dict):
    """Weights that know which were read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)


@pytest.mark.parametrize("name", tiny.TINY)
def test_every_weight_is_used(name):
    weights = Read(tiny.weights(name))
    run(name, weights)
    assert weights.read == set(weights)


@pytest.mark.jitted
def test_nothing_is_read_and_dropped():
    """Moving any weight moves the answer, but for the queries of the last block's text: no text comes after it."""
    name = "sd3.5-medium"
    weights = tiny.weights(name)
    before = run(name)
    for key, tensor in weights.items():
        moved = tensor.values() + realize(Recipe(tensor.shape, exponent=-19), f"moved/{key}").values()
        away = distance(run(name, {**weights, key: StoredTensor("f32", tensor.shape, moved)}), before)
        unread = key == "joint_blocks.2.context_block.attn.ln_q.weight"
        assert (away == 0) if unread else (away > 1e-6), key


@pytest.mark.jitted
@pytest.mark.parametrize("name", tiny.TINY)
def test_the_items_of_a_batch_do_not_meet(name):
    both = run(name)
    for i in range(2):
        alone = run(name, **{key: x[i : i + 1] for key, x in tiny.inputs(name).items()})
        assert distance(alone[0], both[i]) <= 1e-13


def test_a_skipped_layer_is_as_if_it_were_not_there():
    name = "sd3.5-medium"
    renumbered = {}
    for key, tensor in tiny.weights(name).items():
        if not key.startswith("joint_blocks.1."):
            renumbered[key.replace("joint_blocks.2.", "joint_blocks.1.")] = tensor
    np.testing.assert_array_equal(run(name, skip_layers=(1,)), run(name, renumbered))


def test_a_small_picture_lies_in_the_middle_of_the_table():
    """Positions outside the crop are not read: those of 5 x 3 patches in a table of 6 start at row 0, column 1."""
    weights = tiny.weights("sd3")
    table = weights["pos_embed"]
    square = np.full((6, 6, table.shape[-1]), np.nan, np.float32)
    square[0:5, 1:4] = table.values().reshape(square.shape)[0:5, 1:4]
    weights["pos_embed"] = StoredTensor("f32", table.shape, square.reshape(table.shape))
    np.testing.assert_array_equal(run("sd3", weights), run("sd3"))


def test_a_table_without_its_batch_axis_is_read():
    weights = tiny.weights("sd3")
    table = weights["pos_embed"]
    weights["pos_embed"] = StoredTensor("f32", table.shape[1:], table.values()[0])
    np.testing.assert_array_equal(run("sd3", weights), run("sd3"))


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((2, 4, 9, 6), "9 x 6 pixels is not whole patches of 2 x 2"),
        ((2, 4, 6, 5), "6 x 5 pixels is not whole patches of 2 x 2"),
        ((2, 4, 6, 14), '"pos_embed" has positions for 12 x 12'),
        ((2, 4, 14, 6), '"pos_embed" has positions for 12 x 12'),
    ],
)
def test_a_latent_that_does_not_fit(shape, says):
    with pytest.raises(BadInput, match=says) as error:
        run("sd3", x=np.zeros(shape, np.float32))
    assert "\n" not in str(error.value)


def test_a_model_that_is_not_whole_heads():
    with pytest.raises(BadInput, match="24 channels are not whole heads of 64"):
        mmdit(Module(tiny.weights("sd3")), **tiny.inputs("sd3"))


def test_a_table_that_is_not_square():
    weights = tiny.weights("sd3")
    table = weights["pos_embed"]
    shape = (1, 35, table.shape[-1])
    weights["pos_embed"] = StoredTensor("f32", shape, table.values()[:, :35].copy())
    with pytest.raises(BadInput, match="expected \\[1, size\\*size, D\\]"):
        run("sd3", weights)


@pytest.mark.parametrize("name", tiny.TINY)
def test_names_of_diffusers_and_back(name):
    weights = tiny.weights(name)
    keymap = mmdit_keymap(tiny.TINY[name].blocks)
    theirs = keymap.write(weights)
    sources, unread = keymap.sources(theirs)
    assert not unread
    assert sources.keys() == weights.keys()
    for key, source in sources.items():
        np.testing.assert_array_equal(source.read(theirs).values(), weights[key].values())


def test_only_the_last_blocks_text_has_scale_and_shift_swapped():
    weights = tiny.weights("sd3")
    theirs = mmdit_keymap(2).write(weights)
    first, last = (weights[f"joint_blocks.{i}.context_block.adaLN_modulation.1.bias"].values() for i in (0, 1))
    np.testing.assert_array_equal(theirs["transformer_blocks.0.norm1_context.linear.bias"].values(), first)
    swapped = theirs["transformer_blocks.1.norm1_context.linear.bias"].values()
    np.testing.assert_array_equal(swapped, np.roll(last, len(last) // 2))
