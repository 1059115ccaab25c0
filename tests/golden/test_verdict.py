"""What is measured, and what is made of it."""

import re

import msgspec
import numpy as np
import pytest

from refsd.golden.metrics import INFINITE, Metrics, measure, not_asked_for
from refsd.golden.rounding import Bound
from refsd.golden.verdict import NO_WITNESS, criteria, judge, judge_output

_RNG = np.random.default_rng(3)
_SHAPE = (2, 8, 16, 24)
_TRUTH = _RNG.standard_normal(_SHAPE)
_NOISE = _RNG.standard_normal(_SHAPE)
_LIMIT = 1e-3


def _bound(truth=_TRUTH, spread=1e-5):
    return Bound(np.full(truth.shape, _LIMIT), np.full(truth.shape, spread))


def _measure(found, truth=_TRUTH, honest=None, bound="derived", channel=1) -> Metrics:
    honest = truth + 1e-5 * np.resize(_NOISE, truth.shape) if honest is None else honest
    return measure("y", found, truth, honest, _bound(truth) if bound == "derived" else bound, channel)


def _failing(found, **how) -> str:
    judged = judge_output(_measure(found, **how))
    assert not judged.passed
    assert judged.margin > 1
    assert judged.reason
    return judged.criterion


@pytest.mark.parametrize(
    ("truth", "channel", "groups"),
    [
        (_TRUTH, 1, 8),
        (_TRUTH, -1, 24),
        (np.ones(_SHAPE), 1, 1),
        (np.broadcast_to(_TRUTH[:, :3, :1, :1], (2, 3, 16, 24)), 1, 2),
        (_TRUTH[0, 0, [0, 1, 0, 2, 2]], -1, 3),
        (np.ones((0, 3)), -1, 1),
    ],
)
def test_equal_rows_have_one_error(truth, channel, groups):
    assert _measure(truth, truth=truth, channel=channel).groups == groups


@pytest.mark.smoke
def test_an_honest_engine_passes_and_the_margin_says_by_how_much():
    judged = judge_output(_measure(_TRUTH + 1e-5 * _NOISE[::-1]))
    assert judged.passed
    assert 0.2 < judged.margin < 0.5


def test_the_exact_answer_passes_with_no_margin_used():
    assert judge_output(_measure(_TRUTH)).margin == 0


@pytest.mark.smoke
def test_a_single_wrong_element_fails_and_is_named():
    y = _TRUTH.copy()
    y[1, 3, 5, 7] += 2 * _LIMIT
    metrics = _measure(y)
    assert metrics.engine.at == (1, 3, 5, 7)
    assert judge_output(metrics).criterion == "element"
    assert "[1, 3, 5, 7]" in judge_output(metrics).reason


def test_ten_times_the_honest_noise_fails_inside_the_bound():
    y = _TRUTH + 1e-4 * np.clip(_NOISE, -3, 3)
    assert np.abs(y - _TRUTH).max() < _LIMIT
    assert _failing(y) in ("rms", "channel", "tile")


def test_a_constant_offset_fails_as_bias():
    assert _failing(_TRUTH + 2e-5) == "bias"


def test_a_gain_fails_as_gain():
    assert _failing(_TRUTH * (1 + 3e-5)) == "gain"


def test_one_bad_channel_fails_where_the_whole_would_not():
    y = _TRUTH + 1e-5 * _NOISE
    y[:, 5] = _TRUTH[:, 5] + 8e-5 * np.where(_NOISE[:, 5] > 0, 1, -1)
    metrics = _measure(y)
    assert metrics.engine.channel_at == 5
    assert _failing(y) == "channel"
    assert next(c for c in criteria(metrics) if c.name == "rms").margin <= 1


def test_one_bad_tile_fails_and_is_placed():
    y = _TRUTH + 1e-5 * _NOISE
    y[1, :, 8:16, 16:24] = _TRUTH[1, :, 8:16, 16:24] + 9e-5 * np.where(_NOISE[1, :, 8:16, 16:24] > 0, 1, -1)
    metrics = _measure(y)
    assert metrics.engine.tile_at == (1, 8, 16)
    assert _failing(y) == "tile"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_fails(value):
    y = _TRUTH.copy()
    y[0, 0, 0, 1] = value
    judged = judge_output(_measure(y))
    assert not judged.passed
    assert "[0, 0, 0, 1]" in judged.reason


def test_infinity_where_the_truth_has_it_passes_and_a_number_there_fails():
    truth = _TRUTH.copy()
    truth[0, 0, 0, 0] = -np.inf
    assert judge_output(_measure(truth.copy(), truth=truth)).passed
    assert not judge_output(_measure(_TRUTH, truth=truth)).passed


def test_an_element_whose_bound_overflows_may_be_anything():
    limit = np.full(_SHAPE, _LIMIT)
    limit[0, 0, 0, 0] = np.inf
    y = _TRUTH.copy()
    y[0, 0, 0, 0] = np.nan
    assert judge_output(_measure(y, bound=Bound(limit, limit / 100))).passed
    y[0, 0, 0, 1] = np.nan
    assert not judge_output(_measure(y, bound=Bound(limit, limit / 100))).passed


def test_a_zero_bound_wants_the_very_number():
    zero = Bound(np.zeros(_SHAPE), np.zeros(_SHAPE))
    assert judge_output(_measure(_TRUTH.copy(), honest=_TRUTH, bound=zero)).passed
    y = _TRUTH.copy()
    y[1, 1, 1, 1] = np.nextafter(y[1, 1, 1, 1], 9)
    judged = judge_output(_measure(y, honest=_TRUTH, bound=zero))
    assert not judged.passed
    assert judged.margin == INFINITE


def test_missing_misshapen_and_unwanted_outputs_fail():
    assert "missing" in judge([_measure(None)]).reason
    assert "expected [2, 8, 16, 24]" in judge([_measure(_TRUTH[:, :4])]).reason
    assert "not asked for" in judge([_measure(_TRUTH), *not_asked_for({"z": _TRUTH}, {})]).reason
    assert not judge([]).passed


def test_the_first_wrong_output_in_the_order_of_computation_is_named():
    """The second is not finite, which is the larger margin, and its consequence."""
    first = measure("first", _TRUTH * 1.01, _TRUTH, _TRUTH + 1e-5 * _NOISE, None, 1)
    second = measure("second", _TRUTH * np.nan, _TRUTH, _TRUTH + 1e-5 * _NOISE, None, 1)
    right = measure("right", _TRUTH, _TRUTH, _TRUTH + 1e-5 * _NOISE, None, 1)
    assert judge([right, first, second]).reason.startswith("first: ")
    assert judge([right, second, first]).reason.startswith("second: ")


def test_an_output_without_a_witness_hides_no_failure():
    unseen = measure("unseen", _TRUTH, _TRUTH, -_TRUTH, None, 1)
    wrong = measure("wrong", _TRUTH * 1.01, _TRUTH, _TRUTH + 1e-5 * _NOISE, None, 1)
    assert judge([unseen, wrong]).reason.startswith("wrong: ")
    assert judge([unseen, measure("right", _TRUTH, _TRUTH, _TRUTH, None, 1)]).criterion == NO_WITNESS


@pytest.mark.parametrize(("away", "witness"), [(0.45, True), (0.55, False), (0.85, False)])
def test_an_honest_run_half_the_truth_away_is_no_witness(away, witness):
    honest = _TRUTH * (1 + away)
    judged = judge([measure("y", _TRUTH, _TRUTH, honest, None, 1)])
    assert judged.passed is witness
    assert (judged.criterion == NO_WITNESS) is not witness


def test_a_model_is_judged_by_its_honest_run():
    honest = _TRUTH + 1e-5 * _NOISE
    assert judge_output(_measure(_TRUTH + 1e-5 * _NOISE[:, ::-1], honest=honest, bound=None)).passed
    assert judge_output(_measure(_TRUTH + 1e-7 * _NOISE, honest=honest, bound=None)).passed
    assert not judge_output(_measure(_TRUTH + 6e-5 * _NOISE[:, ::-1], honest=honest, bound=None)).passed
    y = _TRUTH.copy()
    y[0, 0, 0, 0] += 5e-4
    assert _failing(y, honest=honest, bound=None) == "element"


def test_a_model_in_float64_leaves_room_for_the_order_of_sums_only():
    assert judge_output(_measure(_TRUTH * (1 + 1e-15 * _NOISE), honest=_TRUTH, bound=None)).passed
    assert not judge_output(_measure(_TRUTH * (1 + 1e-12 * _NOISE), honest=_TRUTH, bound=None)).passed


@pytest.mark.parametrize("shape", [(5,), (3, 4), (1, 1), (2, 3, 4)])
def test_every_rank_is_measured(shape):
    truth = _RNG.standard_normal(shape)
    y = truth.copy()
    y[-1] += 2 * _LIMIT
    metrics = _measure(y, truth=truth, channel=-1)
    assert metrics.engine.at[0] == shape[0] - 1
    assert not judge_output(metrics).passed


def test_metrics_survive_json_and_are_judged_again():
    metrics = [_measure(_TRUTH + 2e-5), _measure(np.full(_SHAPE, np.nan))]
    again = msgspec.json.decode(msgspec.json.encode(metrics), type=list[Metrics])
    assert [judge_output(m) for m in again] == [judge_output(m) for m in metrics]


def test_an_honest_run_far_from_the_truth_is_no_witness():
    """A golden of other weights: whatever an engine says would be as near as the honest run."""
    truth = np.linspace(-1, 1, 64).reshape(1, 64)
    judged = judge([measure("y", truth[:, ::-1], truth, -truth, None, -1)])
    assert not judged.passed
    assert judged.criterion == NO_WITNESS
    assert "golden is of other weights" in judged.reason


def test_numbers_are_shown_with_the_digits_that_tell_them_apart():
    truth = 1e6 * _TRUTH
    found = truth.copy()
    found[np.unravel_index(np.argmax(np.abs(truth)), truth.shape)] *= 1 + 1e-7
    numbers = re.search(r"is (\S+), truth (\S+?)[:;]", judge_output(_measure(found, truth)).reason)
    assert numbers is not None
    one, other = numbers.groups()
    assert one != other and 8 < len(one.strip("-")) < 11


def test_doubles_that_are_neighbours_are_shown_apart():
    truth = np.full((1, 4), 1.1)
    found = truth.copy()
    found[0, 2] = np.nextafter(1.1, 2)
    reason = judge_output(measure("y", found, truth, truth, Bound(0 * truth, 0 * truth), -1)).reason
    assert "element [0, 2] is 1.1000000000000003, truth 1.1000000000000001" in reason
