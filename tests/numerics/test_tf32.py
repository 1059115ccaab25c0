"""TF32 against its definition in integers; the profile against an engine that multiplies such numbers."""

import math
from fractions import Fraction

import numpy as np
import pytest

from refsd.golden.judge import Standard
from refsd.golden.operations import OPERATIONS
from refsd.golden.verdict import judge
from refsd.judges.operation import OperationJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64, TORCH_BF16_PRODUCTS, TORCH_TF32
from refsd.numerics.tf32 import to_tf32


def nearest(x: float) -> float:
    """To 11 bits of significand, ties to even; x normal."""
    exact = Fraction(x)
    step = Fraction(2) ** (math.frexp(x)[1] - 11)
    return float(round(exact / step) * step)


def test_it_rounds_to_the_nearest_number_of_eleven_bits():
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(2000) * 2.0 ** rng.integers(-30, 30, 2000)).astype(np.float32)
    ties = np.float32(1) + np.arange(64, dtype=np.float32) * np.float32(2.0**-11)
    for values in (x, ties, -ties):
        np.testing.assert_array_equal(to_tf32(values), [nearest(float(v)) for v in values])


def test_what_is_no_number_stays():
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    y = to_tf32(x)
    assert y.tobytes() == x.tobytes()
    assert to_tf32(np.float64([1 / 3])).dtype == np.float64


def verdict(case, found, numerics):
    kind, inputs = OperationJudge(), case.realize()
    truth, honest = (kind.answer(case, inputs, Arithmetic(n)) for n in (FLOAT64, numerics))
    standard = Standard(case, inputs, truth, honest, numerics)
    return judge(kind.measure(standard, {"y": found(inputs)}))


def product(round_x, round_w):
    def linear(inputs):
        x, w, b = (inputs[name].values().astype(np.float32) for name in ("x", "weight", "bias"))
        return round_x(x)[..., ::-1] @ round_w(w)[:, ::-1].T + b

    return linear


LINEAR = next(case for case in OPERATIONS["linear"].cases if case.name == "linear/f32/tokens-x77x320-o33")


def bf16(x):
    import ml_dtypes

    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize(("numerics", "rounding"), [(TORCH_TF32, to_tf32), (TORCH_BF16_PRODUCTS, bf16)])
def test_an_engine_that_multiplies_such_numbers_conforms_if_it_says_so(numerics, rounding):
    engine = product(rounding, rounding)
    assert verdict(LINEAR, engine, numerics).passed
    assert not verdict(LINEAR, engine, FLOAT32).passed


def test_a_coarser_engine_does_not_conform():
    coarser = product(bf16, bf16)
    assert not verdict(LINEAR, coarser, TORCH_TF32).passed
    assert not verdict(LINEAR, product(to_tf32, lambda w: 1.001 * to_tf32(w)), TORCH_TF32).passed
