"""A bug in one place alone is named with its place; zeros, NaN and foreign memory are told; noise has no cause."""

import numpy as np
import pytest

from refsd.causes.generic.fitted_causes import fitted_causes

RNG = np.random.default_rng(7)
TRUTH = RNG.standard_normal((4, 77))
HONEST = TRUTH * (1 + 2.0**-24 * RNG.standard_normal(TRUTH.shape))
SHIFTED = np.roll(TRUTH, 1, axis=0)
SUSPECTS = {"the row before": SHIFTED, "doubled": 2 * TRUTH}
POISON = np.frombuffer(b"\xff" * 4, np.float32)[0]
TAIL = "in the last 5 of 77 along axis 1 (channels), after the last whole block of 8"


def _with_tail(y):
    found = HONEST.copy()
    found[:, 72:] = np.broadcast_to(y, TRUTH.shape)[:, 72:]
    return found


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (_with_tail(SHIFTED), f"the row before, {TAIL} alone"),
        (_with_tail(0.0), f"nothing is computed: zeros, {TAIL}"),
        (_with_tail(3.5), f"nothing is written, {TAIL}: constant 3.5"),
        (np.zeros_like(TRUTH), "nothing is computed: zeros"),
        (_with_tail(np.nan), f"nothing is computed: NaN, {TAIL}"),
        (
            np.where(np.arange(308).reshape(4, 77) < 50, HONEST, 0),
            "nothing is computed: zeros, in the elements from 50 on of 308, counted flat",
        ),
        (
            _with_tail(POISON),
            f"memory that nobody wrote is read, {TAIL}: 20 of 308 elements are NaN with bits that",
        ),
        (
            np.where(np.arange(308).reshape(4, 77) % 50 == 7, 10.0 ** np.linspace(-37, 37, 77), HONEST),
            "memory that nobody wrote is read: 7 of 308 elements hold unrelated values, up to 1e+37, where all",
        ),
        (
            np.where(np.abs(TRUTH) > 2, np.copysign(np.inf, TRUTH), HONEST),
            "numbers overflow: infinite where the truth is beyond 2",
        ),
        (_with_tail(np.inf), None),
        (np.where(TRUTH < -0.5, 0, HONEST), None),  # the others are right
        (np.where(TRUTH < -0.5, 3.5, HONEST), None),
        (HONEST + np.where(np.arange(77) < 64, 0.1 * RNG.standard_normal(TRUTH.shape), 0), None),
        (np.full_like(TRUTH, np.nan), None),
    ],
)
def test_the_cause_and_its_place(found, says):
    causes = fitted_causes(found, TRUTH, HONEST, -1, SUSPECTS)
    assert causes == [] if says is None else causes[0].startswith(says), causes


@pytest.mark.parametrize(("axis", "n"), [(0, 8), (1, 32)])
def test_a_tile_that_nobody_writes_is_told(axis, n):
    truth = RNG.standard_normal((16, 96))
    honest = truth * (1 + 2.0**-24 * RNG.standard_normal(truth.shape))
    tile = np.s_[8:16] if axis == 0 else np.s_[:, 32:64]
    left, noisy = honest.copy(), honest.copy()
    left[tile] = 0.5 * RNG.standard_normal(left[tile].shape)
    noisy[tile] += 0.5 * RNG.standard_normal(left[tile].shape)
    (cause,) = fitted_causes(left, truth, honest, -1, {})
    says = f"a tile of {n} is not written, or written over: what stands there is unlike the right numbers, in "
    assert cause.startswith(says), cause
    assert fitted_causes(noisy, truth, honest, -1, {}) == [], "these are the right numbers with noise"


@pytest.mark.parametrize("bias", [0.0, 3.0])
def test_all_tiles_behind_the_first_are_told(bias):
    """What is added to each column is right there, too: sums over something else."""
    more = bias * RNG.standard_normal(40)
    truth = RNG.standard_normal((77, 40)) + more
    honest = truth * (1 + 2.0**-24 * RNG.standard_normal(truth.shape))
    found, late = honest.copy(), honest.copy()
    found[32:] = RNG.standard_normal(found[32:].shape) + more
    late[33:] = RNG.standard_normal(late[33:].shape) + more
    (cause,) = fitted_causes(found, truth, honest, -1, {})
    assert cause.startswith("tiles of 32 behind the first are not written, or written over: "), cause
    assert fitted_causes(late, truth, honest, -1, {}) == [], "33 is no tile's length"


def test_a_bug_is_told_of_what_is_written_where_all_else_is_zeros():
    found = np.where(np.arange(77) < 40, SHIFTED, 0.0)
    (cause,) = fitted_causes(found, TRUTH, HONEST, -1, SUSPECTS)
    assert cause.startswith("the row before, and nothing is computed: zeros, in the last 37 of 77 along axis 1"), (
        cause
    )
    found[:, :40] += 0.1 * RNG.standard_normal((4, 40))
    assert not any("the row before" in cause for cause in fitted_causes(found, TRUTH, HONEST, -1, SUSPECTS))


@pytest.mark.parametrize("zeros", [0, 1, 3])
def test_what_a_loop_over_whole_blocks_of_the_flat_data_leaves_is_one_place(zeros):
    """The truth may be zero at the beginning of the rest, as behind a ReLU."""
    truth, found = TRUTH.copy(), HONEST.copy()
    truth.reshape(-1)[304 : 304 + zeros] = 0
    found.reshape(-1)[304:] = 0
    causes = fitted_causes(found, truth, np.where(truth == 0, 0, HONEST), -1, {"doubled": 2 * truth})
    rest = "in the last 4 of 308 along the flat data, after the last whole block of 8 or 16"
    assert f"nothing is computed: zeros, {rest}" in causes
    assert len(causes) == (1 if zeros < 3 else 2), "one wrong element is a place of its own, too"


def test_right_numbers_in_the_rest_are_not_what_a_loop_leaves():
    found = HONEST.copy()
    found.reshape(-1)[305:] = 0
    (cause,) = fitted_causes(found, TRUTH, HONEST, -1, {})
    assert "along the flat data" not in cause


def test_nan_of_a_known_bug_is_that_bug():
    wrong = np.where(np.arange(4)[:, None] == 2, np.nan, TRUTH)
    found = np.where(np.isnan(wrong), np.nan, HONEST)
    assert fitted_causes(found, TRUTH, HONEST, -1, {"NaN of row 2": wrong}) == ["NaN of row 2"]


def test_blocks_with_scales_of_their_own_are_told():
    truth = RNG.standard_normal((3, 64))
    found = (truth.reshape(3, 2, 32) * np.array([[[2.0], [0.5]], [[3.0], [1.5]], [[0.2], [4.0]]])).reshape(3, 64)
    assert fitted_causes(found, truth, truth, -1, {}) == ["each block of 32 has a factor of its own"]


@pytest.mark.parametrize(
    ("factors", "says"),
    [
        (np.full((8, 1), 3.0), "3 times the right answer"),
        (np.linspace(2, 2.5, 8)[:, None], "each row has a factor of its own, 2 to 2.5: a statistic of the row"),
    ],
)
def test_one_factor_for_all_is_no_statistic(factors, says):
    truth = RNG.standard_normal((8, 64))
    assert fitted_causes(factors * truth, truth, truth, -1, {}) == [says]


@pytest.mark.parametrize(
    ("off", "types"),
    [
        (2.0**-10, [" in float16"]),
        (2.0**-8, [" in float16", " in bfloat16"]),
        (2.0**-6, [" in bfloat16"]),
        (0.5, [""]),
    ],
)
def test_the_types_of_a_statistic_are_told_by_how_far_its_factors_are_off(off, types):
    truth = RNG.standard_normal((8, 64))
    factors = 1 + off * np.linspace(-1, 1, 8)[:, None]
    said = fitted_causes(factors * truth, truth, truth, -1, {})
    assert [text.partition("a statistic of the row")[2] for text in said] == types


def test_the_longest_blocks_that_have_a_factor_are_told():
    truth = RNG.standard_normal((8, 256))
    found = (truth.reshape(8, 2, 128) * RNG.uniform(0.5, 2, (8, 2, 1))).reshape(truth.shape)
    assert fitted_causes(found, truth, truth, -1, {}) == ["each block of 128 has a factor of its own"]


def test_zeros_come_before_a_bug_that_gives_the_same_numbers():
    truth = np.random.default_rng(4).standard_normal((33, 40))
    honest = truth.astype(np.float32).astype(np.float64)
    found = honest.copy()
    found[:, 32:] = 0
    (named,) = fitted_causes(found, truth, honest, 1, {"scales read as another type": found + 1e-12})
    assert named.startswith("nothing is computed: zeros, in the last 8 of 40 along axis 1"), named
