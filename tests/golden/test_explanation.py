"""When a suspect explains an answer, on arrays that a reader can check."""

from dataclasses import replace

import numpy as np
import pytest

from refsd.golden.explanation import Explanation, Scene, _units

_RNG = np.random.default_rng(7)
_N = 400
_TRUTH, _NOISE, _EFFECT = _RNG.standard_normal((3, _N))


def _scene(found, honest=None) -> Scene:
    honest = _TRUTH + 0.01 * _NOISE if honest is None else honest
    return Scene({"y": found}, {"y": _TRUTH}, {"y": honest}, {"y": 1.0})


def _first(scene: Scene, n: int) -> Scene:
    found, truth, honest = ({"y": answer["y"][:n]} for answer in (scene.actual, scene.truth, scene.honest))
    return Scene(found, truth, honest, scene.scale)


def _explains(found, effect=_EFFECT, precision=False) -> bool:
    scene = _scene(found)
    return scene.explained_by({"y": scene.honest["y"] + effect}, precision)


def test_the_bug_itself_and_no_half_or_double_of_it():
    for times, explained in (
        (1, True),
        (1.2, True),
        (0.8, True),
        (0.5, False),
        (0, False),
        (2, False),
        (-1, False),
    ):
        assert _explains(_TRUTH + times * _EFFECT + 0.01 * _NOISE[::-1]) is explained


def test_a_bug_below_the_rounding_is_seen_along_its_own_effect():
    """Rounding is three times as large as the effect, so that the distances differ by 5 %."""
    effect = np.resize(_EFFECT / 3, 40_000)
    truth, noise, other = _RNG.standard_normal((3, 40_000))
    scene = Scene({"y": truth + effect + noise}, {"y": truth}, {"y": truth + other}, {"y": 1.0})
    assert scene.explained_by({"y": truth + other + effect})
    assert not replace(scene, actual={"y": truth + noise}).explained_by({"y": truth + other + effect})


def test_too_few_elements_to_tell_prove_nothing():
    scene = _scene(_TRUTH + _EFFECT)
    few = _first(scene, 4)
    noisy = replace(few, actual={"y": few.truth["y"] + _EFFECT[:4] + 2 * _NOISE[:4]})
    assert few.explained_by({"y": few.honest["y"] + _EFFECT[:4]})
    assert not noisy.explained_by({"y": few.honest["y"] + _EFFECT[:4]})


def test_what_the_honest_run_does_too_is_no_cause():
    scene = _scene(_TRUTH + _EFFECT, honest=_TRUTH + 0.9 * _EFFECT)
    assert not scene.explained_by({"y": _TRUTH + _EFFECT})


def test_a_precision_may_round_in_another_order():
    rounded, other = 0.5 * _EFFECT, 0.5 * (0.8 * _EFFECT + 0.6 * _NOISE[::-1])
    assert _explains(_TRUTH + other, rounded, precision=True)
    assert not _explains(_TRUTH + 0.5 * _NOISE[::-1], rounded, precision=True)


def test_numbers_that_are_none():
    nan = np.where(np.arange(_N) < 9, np.nan, _TRUTH)
    scene = _scene(nan)
    assert scene.explained_by({"y": np.where(np.isnan(nan), np.nan, scene.honest["y"])})
    assert not scene.explained_by({"y": scene.honest["y"] + _EFFECT})


def test_the_nearest_comes_first_and_the_far_are_left_out():
    scene = _scene(_TRUTH + _EFFECT + 0.01 * _NOISE[::-1])
    suspects = {"far": 1.2, "near": 1.001, "nearest": 1.0}
    answers = {name: {"y": scene.honest["y"] + times * _EFFECT} for name, times in suspects.items()}
    assert scene.nearest(answers) == ["nearest", "near"]
    assert scene.nearest({}) == []


def test_outputs_are_told_in_units_of_their_own_scale():
    """A small output, all wrong, beside one a thousand times as large, a thousandth of it wrong."""
    large, small = 1000 * _TRUTH, _TRUTH[::-1]
    truth = {"large": large, "small": small}
    honest = {"large": large + 0.01 * _NOISE, "small": small + 0.01 * _NOISE}
    found = {"large": large + _EFFECT, "small": small + _EFFECT}
    suspects = {
        "of the large": {"large": large + _EFFECT, "small": small},
        "of the small": {"large": large, "small": small + _EFFECT},
    }
    scale = {"large": 1000.0, "small": 1.0}
    assert Scene(found, truth, honest, scale).nearest(suspects) == ["of the small"]
    assert Scene(found, truth, honest, {"large": 1.0, "small": 1000.0}).nearest(suspects) == ["of the large"]


def test_equal_elements_are_no_distance():
    scale = np.array([1.0, 1.0, 1.0, np.inf])
    found = _units(np.array([2.0, np.nan, np.inf, 5.0]), np.array([2.0, np.nan, np.inf, 3.0]), scale)
    assert found.tolist() == [0, 0, 0, 0]


def test_numbers_that_are_none_change_no_other_distance():
    scale = np.abs(_NOISE) + 0.1
    whole = _units(_TRUTH, _EFFECT, scale)
    broken = _units(np.append(_TRUTH, np.nan), np.append(_EFFECT, 0.0), np.append(scale, 1.0))
    np.testing.assert_array_equal(broken[:-1], whole)
    assert (
        np.array_equal(_units(_TRUTH, _TRUTH, 0.1), np.zeros(_N)) and _units(_TRUTH, _EFFECT, 1e-40).max() == 1e30
    )


def test_another_shape_explains_nothing():
    scene = _scene(_TRUTH + _EFFECT)
    assert not scene.explained_by({"y": (_TRUTH + _EFFECT)[:-1]})


def test_the_nearest_bug_explains_a_share_and_is_named_above_a_half():
    def nearest(found, *names):
        scene = _scene(found)
        effects = {"right": _EFFECT, "other": _NOISE}
        found = scene.nearest_cause((name, {"y": scene.honest["y"] + effects[name]}) for name in names)
        return found and found.phrase

    rest = _RNG.standard_normal(_N)
    rest -= _EFFECT * (rest @ _EFFECT) / (_EFFECT @ _EFFECT)
    rest *= np.linalg.norm(_EFFECT) / np.linalg.norm(rest)
    # Squares add up: 1 of the bug and 0.2 of something else is 83.3 %.
    most = _TRUTH + _EFFECT + np.sqrt(0.2) * rest
    phrase = "the nearest known bug, 'right', explains 83 % of the error"
    assert nearest(most, "other", "right") == nearest(most, "right") == phrase
    twice = nearest(_TRUTH + 2 * _EFFECT + 0.9 * rest, "right")
    assert twice == "the nearest known bug, 'right', 2 times as strong, explains 83 % of the error"
    assert nearest(most, "other") is None
    assert nearest(_TRUTH + _EFFECT + 1.01 * rest, "right") is None
    assert nearest(_TRUTH + _EFFECT + 0.98 * rest, "right") is not None
    assert nearest(_TRUTH - _EFFECT, "right") is None
    assert nearest(np.where(np.arange(_N) < 3, np.nan, most), "right") is None
    assert nearest(_TRUTH + _EFFECT, "right").endswith("99 % of the error")


def test_of_few_elements_no_bug_is_near():
    few = _first(_scene(_TRUTH + _EFFECT), 20)
    assert few.nearest_cause({"bug": {"y": few.honest["y"] + _EFFECT[:20]}}) is None


@pytest.mark.parametrize(
    ("n", "said"), [(1, "a"), (3, "a or b or c"), (4, "a or b or c or 1 other"), (6, "a or b or c or 3 others")]
)
def test_causes_that_a_reason_does_not_name_are_counted(n, said):
    assert Explanation(tuple("abcdef"[:n])).text == f"the reference agrees if {said}"
