"""What a wrong answer to an operation is called."""

import numpy as np
import pytest

from refsd.golden.arithmetic import Arithmetic
from refsd.golden.cases import CASES
from refsd.golden.diagnose import causes
from refsd.golden.mutants import MUTANTS
from refsd.golden.numerics import FLOAT32, FLOAT64, GGML_CPU
from refsd.golden.operations import complete, run

_PLACES = [
    ("group_norm/f32/tiny-n2-c64-h6-w5-g32", FLOAT32),
    ("layer_norm/f32/tiny-x33x320", FLOAT32),
    ("gelu/f32/bend-x33x77", FLOAT32),
    ("linear/q8_0/tokens-x77x320-o33", FLOAT32),
    ("linear/q8_0/tokens-x77x320-o33", GGML_CPU),
]


def _answers(case, inputs, numerics):
    params = complete(case.op, inputs, case.params)
    return (
        params,
        run(case.op, Arithmetic(FLOAT64), inputs, params),
        run(case.op, Arithmetic(numerics), inputs, params),
    )


@pytest.mark.parametrize(("name", "numerics"), _PLACES)
def test_each_known_bug_is_named(name, numerics):
    case = CASES[name]
    inputs = case.realize()
    params, truth, honest = _answers(case, inputs, numerics)
    asked = 0
    for mutant in MUTANTS[case.op]:
        with np.errstate(all="ignore"):
            wrong = mutant.wrong(case.op, inputs, params)
        if wrong is None or np.array_equal(wrong, honest["y"]):
            continue
        # Another order of sums moves the last bits.
        found = {"y": wrong * (1 + 2.0**-23)}
        assert mutant.name in causes(case, inputs, found, truth, honest, numerics)
        asked += 1
    assert asked >= 2


@pytest.mark.parametrize(("name", "numerics"), _PLACES)
def test_what_nobody_knows_has_no_name(name, numerics):
    case = CASES[name]
    inputs = case.realize()
    _, truth, honest = _answers(case, inputs, numerics)
    for found in (
        {"y": honest["y"] + 1},
        {"y": np.full_like(honest["y"], np.nan)},
        {"y": honest["y"][..., :-1]},
        {},
    ):
        assert causes(case, inputs, found, truth, honest, numerics) == []


def test_two_kinds_of_gelu_are_told_apart():
    case = CASES["gelu/f32/bend-x33x77"]
    inputs = case.realize()
    _, truth, honest = _answers(case, inputs, FLOAT32)
    tanh = run("gelu_tanh", Arithmetic(FLOAT32), inputs, {})
    assert causes(case, inputs, tanh, truth, honest, FLOAT32) == ["tanh for erf"]
