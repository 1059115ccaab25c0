"""Projections: sizes are found with their standard errors, honest errors of any shape raise no alarm."""

import numpy as np
import pytest

from refsd.golden.projections import Projection, project

UNIT, LEAST = 2.0**-11, 2.0**-24
C, P = 48, 200


def tap(seed, noise="rounding"):
    """A linear layer's output, [1, C, 10, 20], and an honest float16 engine's error, which hangs together."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((P, 64)) + 0.5, rng.standard_normal((64, C)) / 8
    truth = x @ w

    def error():
        if noise == "rounding":
            return UNIT * truth * rng.uniform(-1, 1, truth.shape)
        if noise == "weights":
            return x @ (w * UNIT * rng.uniform(-1, 1, w.shape))
        return (x * UNIT * rng.uniform(-1, 1, x.shape)) @ w

    return tuple(y.T.reshape(1, C, 10, 20) for y in (truth, error(), error()))


def judged(seed, noise, change=lambda truth: 0.0, effects=None, **more):
    truth, honest, own = tap(seed, noise)
    found = truth + own + change(truth)
    return {p.change.split(" at ")[0].rstrip(" 0123456789"): p for p in project(
        found, truth, truth + honest, 1, UNIT, LEAST, effects(truth) if effects else {}, **more)}  # fmt: skip


@pytest.mark.parametrize("noise", ["rounding", "weights", "inputs"])
def test_honest_errors_of_many_draws_stay_inside(noise):
    sizes = [
        abs(p.size) / p.allowed
        for seed in range(60)
        for p in judged(seed, noise, effects=lambda y: {"tanh": np.tanh(y) - y}).values()
    ]
    assert len(sizes) == 300 and max(sizes) < 0.7


@pytest.mark.parametrize("noise", ["rounding", "weights", "inputs"])
def test_standard_errors_are_what_sizes_scatter_by(noise):
    """In units of its error a size is of RMS 1; errors that are too small by a half would be no bound."""
    scores = {}
    for seed in range(60):
        for name, p in judged(seed, noise).items():
            scores.setdefault(name, []).append(p.size / p.error)
    for name in ("gain", "bias"):
        assert 0.3 < np.sqrt(np.mean(np.square(scores[name]))) < 1.5


def test_the_standard_error_is_that_of_blocks_of_channels_and_of_positions():
    """Errors of weights and of inputs together: neither kind of block says all."""
    truth, weights, _ = tap(7, "weights")
    _, _, inputs = tap(7, "inputs")
    off = weights + inputs
    gain = next(p for p in project(truth + off, truth, truth + off, 1, UNIT, LEAST, {}) if p.change == "gain")
    e, d = off.reshape(C, P), truth.reshape(C, P)
    scale = np.sqrt(np.mean(e**2) + (UNIT * d) ** 2)
    e, d = e / scale, d / scale
    size = (e * d).sum() / (d * d).sum()
    scores = (e - size * d) * d
    blocks = [np.array_split(scores, np.linspace(0, n, 32, endpoint=False).astype(int)[1:], axis)
              for axis, n in enumerate(scores.shape)]  # fmt: skip
    apart = [32 / 31 * sum(block.sum() ** 2 for block in of) for of in blocks]
    both = sum(apart) - (scores**2).sum()
    assert both > 1.02 * max(apart)
    assert gain.size == pytest.approx(size, rel=1e-9)
    assert gain.error == pytest.approx(np.sqrt(both) / (d * d).sum(), rel=1e-9)


def test_a_small_gain_and_a_small_bias_are_found():
    gain = judged(1, "rounding", lambda y: 2e-4 * y)["gain"]
    assert abs(gain.size - 2e-4) < 3 * gain.error and abs(gain.size) > gain.allowed
    assert gain.phrase == f"gain: {gain.size:.3g} +- {gain.error:.1g}"
    bias = judged(1, "rounding", lambda y: np.full(y.shape, 2e-4 * np.sqrt(np.mean(y**2))))["bias"]
    assert abs(bias.size - 2e-4) < 3 * bias.error and abs(bias.size) > bias.allowed


def test_one_channel_and_one_tile_are_found_and_placed():
    def channel(y):
        return 2e-3 * y * (np.arange(C) == 7)[None, :, None, None]

    def tile(y):
        rows, columns = np.arange(10)[:, None] >= 8, np.arange(20) // 8 == 1
        return 2e-3 * y * (rows & columns)

    for change, said in ((channel, "gain of channel 7"), (tile, "gain of the tile at [8, 8]")):
        truth, honest, own = tap(2)
        along = project(truth + own + change(truth), truth, truth + honest, 1, UNIT, LEAST, {})
        found = {p.change: p for p in along}[said]
        assert abs(found.size) > found.allowed and abs(found.size - 2e-3) < 4 * found.error


def test_a_known_change_is_found_in_part():
    """0.1 of the way from erf to tanh, below the rounding of each element."""

    def effects(y):
        return {"tanh": 1e-3 * np.sin(3 * y)}

    found = judged(3, "rounding", lambda y: 0.5 * effects(y)["tanh"], effects)["tanh"]
    assert abs(found.size) > found.allowed and abs(found.size - 0.5) < 3 * found.error


def test_what_an_honest_run_has_too_is_no_fault():
    """A table of the engine's type errs alike in both."""
    truth, honest, own = tap(4)
    off = 1e-3 * truth
    (gain, *_) = project(truth + own + off, truth, truth + honest + off, 1, UNIT, LEAST, {})
    assert abs(gain.size) > 8 * gain.error and abs(gain.size) < gain.allowed


def test_random_roundings_count_where_they_scatter_more():
    truth, honest, own = tap(5)
    runs = [truth * size for size in (1e-3, -1e-3, 1e-3)]
    (gain, *_) = project(truth + own + 2e-3 * truth, truth, truth + honest, 1, UNIT, LEAST, {}, runs)
    assert gain.change == "gain" and gain.error == pytest.approx(1e-3, rel=1e-6) and gain.size < gain.allowed


def test_too_few_elements_say_nothing():
    assert project(np.ones(5), np.ones(5), np.ones(5), 0, UNIT, LEAST, {}) == ()
    small = np.random.default_rng(6).standard_normal((2, 6))
    assert [p.change for p in project(small, small, small, 1, UNIT, LEAST, {})] == []
    zeros = np.zeros((40, 40))
    assert project(zeros, zeros, zeros, 1, UNIT, LEAST, {}) == ()


def test_the_sign_chooses_the_word():
    """eps / 10 is -0.9 / 9 of the effect of 10 eps, so that it is too small, not too large."""
    for change, opposite in (("eps ten times too large", "eps"), ("RoPE's theta 1 % too large", "RoPE's theta")):
        assert Projection(change, 0.0986, 1e-3, 0.0, 0.0).phrase == f"{change}: 0.0986 +- 0.001"
        phrase = Projection(change, -0.0986, 1e-3, 0.0, 0.0).phrase
        assert phrase == f"{opposite} too small: -0.0986 +- 0.001 of {change}"
    assert Projection("gain", -0.002, 1e-5, 0.0, 0.0).phrase == "gain: -0.002 +- 1e-05"


def test_an_eps_that_is_too_small_has_a_negative_size():
    """A norm of rows so small that eps counts, computed with a tenth of it."""
    rows = 1e-3 * np.random.default_rng(3).standard_normal((P, C))
    norm = lambda eps: (rows / np.sqrt((rows**2).mean(1, keepdims=True) + eps)).T.reshape(1, C, 10, 20)
    truth, found = norm(1e-6), norm(1e-7)
    of = project(found, truth, truth, 1, UNIT, LEAST, {"eps ten times too large": norm(1e-5) - truth})
    (eps,) = (p for p in of if p.change.startswith("eps"))
    assert -1 < eps.size < -0.1 and abs(eps.size) > eps.allowed
    assert eps.phrase.startswith("eps too small: -0.")
