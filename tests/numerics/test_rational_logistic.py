"""Sigmoid and tanh as quotients: how far they are off, and that an arithmetic that declares them uses them."""

import numpy as np
import pytest

from refsd.golden.judge import Standard
from refsd.golden.operations import OPERATIONS
from refsd.golden.verdict import judge
from refsd.judges.operation import OperationJudge
from refsd.kernels.tanh import tanh
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64, ONNX_F32, ONNXRUNTIME_CPU
from refsd.numerics.rational_logistic import RATIONAL_ERROR, rational_logistic, rational_tanh

GATED = ("sigmoid", "silu", "quick_gelu", "swiglu", "swiglu_oai", "group_norm_silu")


def test_its_error_is_absolute():
    x = np.linspace(-30, 30, 600_001).astype(np.float32)
    y, truth = rational_logistic(x), 1 / (1 + np.exp(-x.astype(np.float64)))
    error = np.abs(y - truth).max() * 2**24
    assert RATIONAL_ERROR / 2 < error <= RATIONAL_ERROR
    assert (y >= 0).all() and (y <= 1).all()
    assert np.abs(y / truth - 1)[x < -16].max() > 0.1
    assert np.isnan(rational_logistic(np.float32([np.nan]))).all()


def test_tanh_is_a_few_units_off_and_too_small_near_zero():
    x = np.geomspace(1e-6, 12, 200_001).astype(np.float32)
    y, truth = rational_tanh(x), np.tanh(x.astype(np.float64))
    error = (y - truth) / np.spacing(truth.astype(np.float32))
    assert 2 < np.abs(error).max() <= 7
    assert -2 < error[x < 0.1].mean() < -0.5
    np.testing.assert_array_equal(rational_tanh(-x), -y)
    assert np.isnan(rational_tanh(np.float32([np.nan]))).all()


def test_who_declares_it_gets_that_tanh():
    x = np.linspace(0.01, 0.1, 100).astype(np.float32)
    assert (Arithmetic(ONNXRUNTIME_CPU).apply(tanh, x) == rational_tanh(x)).all()
    assert (Arithmetic(FLOAT32).apply(tanh, x) != rational_tanh(x)).any()


@pytest.mark.parametrize("op", GATED)
def test_who_declares_it_passes_and_who_does_not_fails(op):
    case, kind = OPERATIONS[op].cases[0], OperationJudge()
    inputs = case.realize()
    truth = kind.answer(case, inputs, Arithmetic(FLOAT64))
    answer = kind.answer(case, inputs, Arithmetic(ONNXRUNTIME_CPU))
    for numerics, passes in ((ONNXRUNTIME_CPU, True), (ONNX_F32, op == "group_norm_silu")):
        honest = kind.answer(case, inputs, Arithmetic(numerics))
        verdict = judge(kind.measure(Standard(case, inputs, truth, honest, numerics), answer))
        assert verdict.passed == passes, verdict.margin


def test_one_plus_its_mirror_is_one_for_silu():
    """silu(x) - silu(-x) = x, by whichever sigmoid."""
    x = np.linspace(-9, 9, 1001).astype(np.float32)
    for numerics in (FLOAT32, ONNXRUNTIME_CPU):
        a = Arithmetic(numerics)
        np.testing.assert_allclose(a.silu(x) - a.silu(-x), x, atol=9 * 8 * 2**-24)
