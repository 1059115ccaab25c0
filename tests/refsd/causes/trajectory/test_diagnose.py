"""What is to blame for a wrong trajectory: the model, or calls of it that are too many or too few."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.causes.trajectory.diagnose import diagnose
from refsd.judges.trajectory import TrajectoryJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.trajectory import model as analytic

pytestmark = pytest.mark.jitted


def _answer(case, inputs):
    return dict(TrajectoryJudge().answer(case, inputs, Arithmetic(FLOAT64)))


def _of_other_cond(name, monkeypatch, other):
    case = CASES[name]
    inputs = case.realize()
    with monkeypatch.context() as patched:
        patched.setattr(analytic, "cond", other)
        actual = _answer(case, inputs)
    return diagnose(case, inputs, actual, FLOAT32)


def _signal_left_out(x, sigma, signal=1.0):
    s = sigma**2 + signal**2 / 4
    return x * (signal / s / 4) + np.tanh(x / s) * (sigma**2 / s)


def _no_tanh(x, sigma, signal=1.0):
    s = sigma**2 + signal**2 / 4
    return x * (signal / s / 4) + x * (signal / s) * (sigma**2 / s)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("trajectory/flow/euler/simple", _signal_left_out),
        ("trajectory/flow/heun/simple", _signal_left_out),
        ("trajectory/euler/karras", _no_tanh),
    ],
)
def test_a_wrong_model_is_not_laid_on_the_solver(name, wrong, monkeypatch):
    (cause,) = _of_other_cond(name, monkeypatch, wrong)
    assert cause.startswith("the model's formula, not the solver: its first answer is wrong")


def _of_calls(name, change):
    case = CASES[name]
    inputs = case.realize()
    right = _answer(case, inputs)
    rows = ("x", "denoised", "uncond")
    return diagnose(case, inputs, {k: change(y) if k in rows else y for k, y in right.items()}, FLOAT32)


@pytest.mark.parametrize("name", ["trajectory/heun/karras", "trajectory/flow/heun/simple"])
def test_calls_too_many_and_too_few_are_counted(name):
    n = len(_answer(CASES[name], CASES[name].realize())["x"])
    more = lambda y: np.append(y, y[-1:], axis=0)
    assert _of_calls(name, more) == [
        f"the model is called {n + 1} times, not {n}: the last step calls it once more"
    ]
    assert _of_calls(name, lambda y: y[:-2]) == [
        f"the model is called {n - 2} times, not {n}: the last 2 are missing"
    ]
    twice = lambda y: np.insert(y, 2, y[1], axis=0)
    (cause,) = _of_calls(name, twice)
    assert cause == f"the model is called {n + 1} times, not {n}: call 2 is the first that is not the solver's"
