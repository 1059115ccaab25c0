"""Norms that read their input once: the definition, the bound over orders of summation, and what is still seen."""

from dataclasses import replace

import numpy as np
import pytest

from refsd.golden.judge import Standard
from refsd.golden.operations import OPERATIONS
from refsd.golden.verdict import judge
from refsd.judges.operation import OperationJudge
from refsd.kernels.group_norm import group_norm
from refsd.kernels.layer_norm import layer_norm
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.one_pass_norms import group_norm_one_pass, layer_norm_one_pass
from refsd.numerics.profiles import FLOAT32, FLOAT64, TORCH_F32_CHANNELS_LAST

ONE_PASS = {
    "group_norm": TORCH_F32_CHANNELS_LAST,
    "layer_norm": replace(FLOAT32, name="one pass", one_pass=("layer_norm",)),
}


def test_in_float64_they_are_the_norms():
    rng = np.random.default_rng(4)
    x, weight, bias = rng.standard_normal((2, 12, 3, 5)) + 2, rng.standard_normal(12), rng.standard_normal(12)
    np.testing.assert_allclose(
        group_norm_one_pass(x, weight, bias, 4, 1e-5), group_norm(x, weight, bias, 4, 1e-5), rtol=1e-11, atol=1e-12
    )
    rows = np.ascontiguousarray(x.reshape(30, 12))
    np.testing.assert_allclose(
        layer_norm_one_pass(rows, weight, bias, 1e-5), layer_norm(rows, weight, bias, 1e-5), rtol=1e-11, atol=1e-12
    )


def test_arithmetic_takes_them_where_they_are_declared():
    x = (np.random.default_rng(5).standard_normal((1, 8, 4, 4)) + 30).astype(np.float32)
    one, none = np.ones(8, np.float32), np.zeros(8, np.float32)
    a = Arithmetic(TORCH_F32_CHANNELS_LAST)
    np.testing.assert_array_equal(a.group_norm(x, one, none, 2), group_norm_one_pass(x, one, none, 2, 1e-5))
    np.testing.assert_array_equal(
        a.layer_norm(x), Arithmetic(replace(FLOAT32, attention="three-pass")).layer_norm(x)
    )
    assert not np.array_equal(
        a.group_norm_silu(x, one, none, 2), Arithmetic(FLOAT32).group_norm_silu(x, one, none, 2)
    )


def verdict(case, numerics, change):
    """Of an engine that sums in one pass and in an order of its own. change: of its eps"""
    kind, inputs = OperationJudge(), case.realize()
    params = kind.complete(case, inputs)
    truth, honest = (kind.answer(case, inputs, Arithmetic(n)) for n in (FLOAT64, numerics))
    x = inputs["x"].values().astype(np.float32)
    axes = (len(x), params["num_groups"], -1) if case.op == "group_norm" else (-1, x.shape[-1])
    rows = x.reshape(axes)[..., ::-1]
    mean = rows.mean(axis=-1, keepdims=True)
    variance = np.maximum((rows * rows).mean(axis=-1, keepdims=True) - mean * mean, 0)
    y = ((x.reshape(axes) - mean) / np.sqrt(variance + np.float32(change * params["eps"]))).reshape(x.shape)
    each = (slice(None), None, None) if case.op == "group_norm" else (slice(None),)
    for name, operate in (("weight", np.multiply), ("bias", np.add)):
        y = operate(y, inputs[name].values()[each]) if name in inputs else y
    return judge(kind.measure(Standard(case, inputs, truth, honest, numerics), {"y": y}))


CASES = [case for op in ONE_PASS for case in OPERATIONS[op].cases]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_pass_conforms_where_it_is_declared(case):
    assert verdict(case, ONE_PASS[case.op], 1).margin < 0.8


@pytest.mark.parametrize("op", ONE_PASS)
def test_a_mean_far_from_zero_shows_it_where_it_is_not(op):
    case = next(case for case in OPERATIONS[op].cases if "/mean-" in case.name)
    assert not verdict(case, FLOAT32, 1).passed


@pytest.mark.parametrize("op", ONE_PASS)
def test_another_eps_is_still_seen(op):
    case = next(case for case in OPERATIONS[op].cases if "/tiny-" in case.name)
    assert not verdict(case, ONE_PASS[op], 1.1).passed
