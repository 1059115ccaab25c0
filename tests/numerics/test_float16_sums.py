"""Engines whose sums accumulate in float16: they conform if they say so, and coarser ones do not."""

from dataclasses import replace

import numpy as np
import pytest

from refsd.golden.judge import Standard
from refsd.golden.operations import OPERATIONS
from refsd.golden.verdict import judge
from refsd.judges.operation import OperationJudge
from refsd.kernels.attention import attention
from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.linear import linear
from refsd.kernels.products_f16 import products_f16
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64, PROFILES, TORCH_F16, Float16Sums, Numerics

# Without the JIT tests/kernels/test_products_f16.py runs these sums' lines, on fewer numbers.
pytestmark = pytest.mark.jitted


def case_of(op, name):
    return next(case for case in OPERATIONS[op].cases if case.name == name)


LINEAR = case_of("linear", "linear/f16/tokens-x77x320-o33")
CONV = case_of("conv2d", "conv2d/f16/3x3-n2-c33-k20-h9-w14")
ATTENTION = case_of("attention", "attention/f32/self-b2-l35-j35-h2-d40")
CASES = {"linear": LINEAR, "conv": CONV, "attention": ATTENTION}


def summed(op, step=16, run=0) -> Numerics:
    return replace(TORCH_F16, name="test", conv="f16", sums={op: Float16Sums(step, run)})


def verdict(case, found, numerics):
    kind, inputs = OperationJudge(), case.realize()
    truth, honest = (kind.answer(case, inputs, Arithmetic(n)) for n in (FLOAT64, numerics))
    standard = Standard(case, inputs, truth, honest, numerics)
    return judge(kind.measure(standard, {"y": found}))


def engine(op, matmul):
    """A NumPy engine that reads numbers backwards: another order of sums than the reference's."""
    case = CASES[op]
    x = {name: t.values().astype(np.float16).astype(np.float32) for name, t in case.realize().items()}
    if op == "linear":
        y = linear(x["x"][..., ::-1], x["weight"][:, ::-1], x.get("bias"), matmul)
    elif op == "conv":
        how = (case.params.get("stride", 1), tuple(case.params["padding"]))
        y = conv2d_im2col(x["x"][:, ::-1].copy(), x["weight"][:, ::-1].copy(), x["bias"], *how, matmul=matmul)
    else:
        reverse = {name: t[:, ::-1].copy() for name, t in x.items() if name in ("k", "v")}
        y = attention(x["q"], reverse["k"], reverse["v"], x["q"].shape[-1] ** -0.5, matmul=matmul)
    return y.astype(np.float16).astype(np.float32)


def half(step=16, run=0):
    return lambda a, b, out=None: products_f16(a, b, out, step=step, run=run)


@pytest.mark.parametrize("op", CASES)
@pytest.mark.parametrize(("step", "run"), [(1, 0), (16, 0), (16, 64)])
def test_an_engine_with_float16_sums_conforms_if_it_says_so(op, step, run):
    y = engine(op, half(step, run))
    told = verdict(CASES[op], y, summed(op, step, run))
    assert told.passed, told.reason
    assert verdict(CASES[op], engine(op, np.matmul), summed(op, step, run)).passed


@pytest.mark.parametrize("op", ["linear", "conv"])
def test_an_engine_with_float16_sums_does_not_conform_if_it_says_nothing(op):
    assert not verdict(CASES[op], engine(op, half(1)), replace(TORCH_F16, conv="f16")).passed


def test_an_engine_with_longer_runs_than_it_says_does_not_conform():
    assert not verdict(LINEAR, engine("linear", half(1)), summed("linear", step=16, run=16)).passed


def test_a_gain_is_seen_through_float16_sums():
    y = engine("linear", half(16)) * np.float32(1.02)
    assert not verdict(LINEAR, y, PROFILES["torch-f16-sums"]).passed


def test_sums_in_float16_have_factors_in_float16():
    with pytest.raises(ValueError, match='expected products "f16"'):
        Numerics("test", "float32", "float32", sums={"linear": Float16Sums()})
    with pytest.raises(ValueError, match='expected conv "f16"'):
        Numerics("test", "float32", "float32", products="f16", sums={"conv": Float16Sums()})
    Numerics("test", "float32", "float32", products="f16", sums={"attention": Float16Sums()})
