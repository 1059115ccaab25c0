"""MiniMax-H3's transformer: what diffusers answered for it, and what must hold whatever the weights."""

from pathlib import Path

import numpy as np
import pytest
import tiny_minimax_h3 as tiny

from refsd.families.minimax_h3 import VARIANT
from refsd.models.minimax_h3 import (
    TEXT,
    VIDEO,
    Run,
    axis,
    frame_times,
    minimax_h3,
    patches,
    positions,
    time_curve,
    times,
    unpatch,
    words,
)
from refsd.models.minimax_h3.bugs import BUGS
from refsd.models.minimax_h3.component import COMPONENTS
from refsd.module import Module
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored
from refsd.samplers.schedules.flow import flow_uniform

pytestmark = pytest.mark.jitted
RECORDED = Path(__file__).parents[2] / "fixtures" / "minimax_h3.npz"


@pytest.fixture(scope="module")
def run():
    weights = {name: stored(w.values().astype(np.float64)) for name, w in tiny.weights().items()}

    def run(**changed):
        return minimax_h3(Module(weights), **{**tiny.inputs(), **tiny.PARAMS, **changed})

    return run


def test_as_diffusers(run):
    """Recorded by tests/fixtures/record_minimax_h3.py."""
    recorded = np.load(RECORDED)
    for got, name in zip(run(), ("out", "audio_out"), strict=True):
        np.testing.assert_allclose(got, recorded[name], rtol=0, atol=1e-12)


def test_positions():
    """Three words, the last frame, two steps of sound, three latent frames of 2 x 4: one row of two patches."""
    columns = [16 - 16 * 2**0.5, 16.0]
    still, starts = 3 + 5 / 3 * 8, (0, 5 / 3, 25 / 3)
    want = [[j, 0, 0] for j in range(3)]
    want += [[still, row, c] for row in [16 - 8 * 2**0.5] for c in columns]
    want += [[3 + t, 0, c] for c in columns for t in range(2)]
    want += [[3 + start, 16 - 8 * 2**0.5, c] for start in starts for c in columns]
    np.testing.assert_allclose(positions(3, ["last"], 2, 3, 2, 4), want, rtol=1e-14)


def test_a_square_has_rows_from_0_on_below_32_and_a_frame_keeps_its_shape():
    np.testing.assert_allclose(axis(8, 64), [0, 8, 16, 24])
    rows, columns = axis(4, 64), axis(16, 64)
    np.testing.assert_allclose([np.diff(rows), np.diff(columns)[:1]], [[8], [8]])


def test_one_latent_frame_in_five_is_of_one_frame():
    np.testing.assert_allclose(np.diff(frame_times(12)) / (5 / 3), [1, 4, 4, 4, 4, 1, 4, 4, 4, 4, 1])


def test_patches_and_back():
    x = np.arange(2 * 3 * 2 * 4 * 6).reshape(2, 3, 2, 4, 6)
    assert patches(x)[1, 7].tolist() == x[1, :, 1, 0:2, 2:4].ravel().tolist()
    np.testing.assert_array_equal(unpatch(patches(x), x.shape), x)


def test_words_of_pictures():
    assert words(5, ()) == [Run(5, 0, TEXT)]
    assert words(5, (0, 2, 4, 5)) == [Run(2, 0, VIDEO), Run(2, 0, TEXT), Run(1, 0, VIDEO)]


def test_keyframes_are_at_their_own_time_or_the_video_s_if_that_is_later():
    got = times(np.array([0.25, 0.9999]), np.array([0.5, 0.75]), 0.999)
    assert got.tolist() == [0.25, 0.9999, 0.5, 0.75, 0.999, 0.9999]


def test_a_table_of_times_is_interpolated():
    table = np.random.default_rng(0).standard_normal((5, 3))
    m = Module({"adaln_t_table": stored(table)})
    want = [table[0], table[4], 0.25 * table[2] + 0.75 * table[3], table[4]]
    np.testing.assert_allclose(time_curve(m, np.array([0.0, 1.0, 0.6875, 1.5])), want, rtol=1e-15, atol=1e-15)


def test_a_video_without_keyframes_is_another(run):
    one, _ = run(first=None)
    assert np.abs(one - run()[0]).max() > 1e-3


@pytest.mark.parametrize("vision", [[1], [3, 2], [2, 8]])
def test_ranges_that_no_prompt_has_are_refused(run, vision):
    with pytest.raises(BadInput, match="start and end of each range, in order, among 7 words"):
        run(vision=vision)


def test_an_odd_size_is_refused(run):
    with pytest.raises(BadInput, match="latents of 4 x 5: expected multiples of 2 x 2"):
        run(x=np.zeros((2, 3, 6, 4, 5)))


@pytest.mark.parametrize("which", ["first", "last"])
@pytest.mark.parametrize("shape", [(2, 3, 1, 6, 4), (2, 3, 2, 4, 6), (1, 3, 1, 4, 6), (2, 3, 1, 4, 8)])
def test_a_keyframe_of_another_size_is_refused(run, which, shape):
    with pytest.raises(BadInput, match=rf"{which}: a keyframe of .*: expected \(2, 3, 1, 4, 6\)"):
        run(**{which: np.zeros(shape)})


@pytest.mark.parametrize(
    ("name", "shape"),
    [("audio", (2, 5, 2, 0)), ("context", (2, 0, 24)), ("x", (2, 3, 0, 4, 6)), ("x", (2, 3, 6, 0, 6))],
)
def test_what_has_no_tokens_is_refused(run, name, shape):
    with pytest.raises(BadInput, match="expected none of them to be 0"):
        run(**{name: np.zeros(shape)}, vision=())


def test_more_rotary_channels_than_a_head_has_are_refused(run):
    with pytest.raises(BadInput, match="axes_dim has 24 channels for heads of 20"):
        run(axes_dim=[8, 8, 8])


def test_the_component_lets_a_head_have_channels_that_are_not_rotated():
    fit = COMPONENTS["minimax-h3"].fits(Module(tiny.weights()))["axes_dim"]
    assert fit.says == "3 even numbers whose sum is at most 20, a head's channels"
    assert all(fit.holds(dims) for dims in ([6, 6, 6], [8, 6, 6]))
    assert not any(fit.holds(dims) for dims in ([8, 8, 8], [5, 6, 6], [6, 6], 18))


def test_rows_that_are_no_heads_of_128_cannot_be_read_head_by_head():
    (bug,) = (bug for bug in BUGS if "head by head" in bug.name)
    name = "blocks.0.attn.qkv_proj.weight"
    assert bug.change.revalue(name, np.zeros((120, 44))) is None
    rows = np.arange(768.0)[:, None] * np.ones(5)
    assert bug.change.revalue(name, rows)[128:256, 0].tolist() == [*range(384, 512)]


def test_as_many_steps_as_diffusers_evaluates():
    """MiniMaxH3Scheduler counts the last level, 0, among its 50 steps: levels of 1 - i / 49, shifted."""
    base = 1 - np.arange(50) / 49
    got = flow_uniform(VARIANT.steps, VARIANT.flow.shift["diffusers"](0, 0))
    np.testing.assert_allclose(got, 12 * base / (1 + 11 * base), rtol=1e-14)
