"""LTX-2's transformer: what diffusers answered for it, and what must hold whatever the weights."""

from pathlib import Path

import numpy as np
import pytest
import tiny_ltx2 as tiny

from refsd.models.ltx2 import angles, audio_positions, gated_add, ltx2, middle, modulated, positions
from refsd.models.ltx2.component import COMPONENTS
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.jitted
RECORDED = np.load(Path(__file__).parents[2] / "fixtures" / "ltx2.npz")


def run(kind, taps=None, **changed):
    weights = {name: stored(w.values().astype(np.float64)) for name, w in tiny.weights(kind).items()}
    return ltx2(Module(weights, taps=taps), **{**tiny.inputs(kind), **tiny.PARAMS[kind], **changed})


@pytest.mark.parametrize("kind", tiny.SIZES)
def test_as_diffusers(kind):
    """Recorded by tests/fixtures/record_ltx2.py."""
    for got, name in zip(run(kind), ("out", "audio_out"), strict=True):
        want = RECORDED[f"{kind} {name}"]
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * np.abs(want).max())


def test_the_first_latent_stands_for_one_frame_and_the_others_for_eight():
    np.testing.assert_array_equal(middle(3, 8), [0.5, 5, 13])
    want = [[t / 25, row, column] for t in (0.5, 5) for row in (16, 48) for column in (16, 48, 80)]
    np.testing.assert_allclose(positions(2, 2, 3, 25.0), want, rtol=1e-15)
    np.testing.assert_allclose(audio_positions(3), [[0.005], [0.03], [0.07]], rtol=1e-15)


def test_frequencies_go_on_from_head_to_head_and_axes_take_turns():
    """32 channels in 2 heads, 3 axes: 16 pairs, of which one is not turned and 5 frequencies are of each axis."""
    got = angles(Module({}), np.array([[5.0, 10.0, 30.0]]), [10, 10, 20], 32, 16.0, 2)
    frequency = np.pi / 2 * np.array([[1], [2], [4], [8], [16]]) * [0, 1, 2]
    assert got.shape == (1, 1, 2, 8)
    np.testing.assert_allclose(got.ravel(), [0, *frequency.ravel()], rtol=1e-14)
    of_time = angles(Module({}), np.array([[10.0]]), [10], 12, 16.0, 3)
    want = np.pi / 2 * 16 ** np.linspace(0, 1, 6)
    np.testing.assert_allclose(of_time.ravel(), want, rtol=1e-14)


def test_angles_are_as_exact_as_what_is_computed_with():
    of_float32 = Module({}, Arithmetic(FLOAT32))
    given = np.array([[0.37, 300.0, 700.0]]), [20, 2048, 2048], 4096, 10000.0, 32
    away = np.abs(angles(of_float32, *given) - angles(Module({}), *given)).max()
    assert 1e-5 < away < 2e-3


def test_each_part_of_the_tokens_has_its_modulation():
    m, rng = Module({}), np.random.default_rng(0)
    x, shift, scale = rng.standard_normal((2, 6, 4)), *rng.standard_normal((2, 2, 3, 4))
    whole = np.repeat(shift, 2, axis=1), np.repeat(scale, 2, axis=1)
    np.testing.assert_allclose(modulated(m, x, shift, scale), x * (1 + whole[1]) + whole[0], rtol=1e-15)
    np.testing.assert_allclose(gated_add(m, x, 2 * x, scale), x + 2 * x * whole[1], rtol=1e-15, atol=1e-15)


def test_frames_with_the_step_s_time_are_as_none_with_a_time():
    times = np.repeat(tiny.inputs("ltx23")["timesteps"][:, None], 3, axis=1)
    for one, other in zip(run("ltx23", frame_timesteps=times), run("ltx23", frame_timesteps=None), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-13)


def test_isolated_streams_do_not_see_each_other():
    audio = 2 * tiny.inputs("ltx23")["audio"]
    apart = [run("ltx23", isolated=True, audio=each)[0] for each in (audio, -audio)]
    np.testing.assert_array_equal(*apart)
    assert np.abs(run("ltx23")[0] - run("ltx23", audio=audio)[0]).max() > 1e-3


def test_a_block_without_attention_computes_no_queries():
    taps = Taps(ops=True)
    run("ltx23", taps)
    assert "transformer_blocks.0.attn1.to_q" in taps and "transformer_blocks.1.attn1.to_v" in taps
    assert "transformer_blocks.1.attn1.to_q" not in taps and "transformer_blocks.1.attn2.to_q" in taps


@pytest.mark.parametrize(
    ("name", "shape"),
    [("audio", (2, 0, 5)), ("context", (2, 0, 14)), ("x", (2, 3, 0, 2, 4)), ("x", (2, 3, 3, 0, 4))],
)
def test_what_has_no_tokens_is_refused(name, shape):
    with pytest.raises(BadInput, match="expected none of them to be 0"):
        run("ltx2", **{name: np.zeros(shape)})


def test_the_component_knows_the_heads():
    fits = COMPONENTS["ltx2"].fits(Module(tiny.weights("ltx2")))
    assert [n for n in range(1, 29) if fits["head_dim"].holds(n)] == [14, 28]  # 7 would not share 16 channels
    assert [n for n in range(1, 25) if fits["audio_head_dim"].holds(n)] == [2, 4, 8, 16]
    gated = COMPONENTS["ltx2"].fits(Module(tiny.weights("ltx23")))
    assert [n for n in range(1, 29) if gated["head_dim"].holds(n)] == [14]
    assert gated["head_dim"].says == "an even number, 28 channels in 2 heads"
    assert (fits["E"].n, fits["G"].n, gated["E"].n, gated["G"].n) == (14, 14, 28, 16)
