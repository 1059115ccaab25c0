"""A case must earn its place: it fails known bugs, and passes honest engines that compute in another order."""

import functools
import itertools

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.golden.metrics import measure
from refsd.golden.mutants import kill_table, try_all
from refsd.golden.mutations import with_bug
from refsd.golden.operations import OPERATIONS, bound, complete, run
from refsd.golden.operations.softmax import NO_MAXIMUM
from refsd.golden.verdict import judge
from refsd.judges.operation import OperationJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, FLOAT64

_OPS = [case for case in CASES.values() if case.op in OPERATIONS]


@functools.cache
def _trials(op: str):
    return [trial for case in _OPS if case.op == op for trial in try_all(OperationJudge(), case)]


@pytest.mark.jitted
@pytest.mark.parametrize("op", OPERATIONS)
def test_every_case_fails_a_mutant_and_every_mutant_fails_a_case(op):
    trials = _trials(op)
    for case in (case.name for case in _OPS if case.op == op):
        assert any(t.killed for t in trials if t.case.name == case), f"{case} fails no known bug"
    for mutant in OPERATIONS[op].mutants:
        assert any(t.killed for t in trials if t.mutant == mutant.name), f"{op}: {mutant.name} gets through"


@pytest.mark.parametrize(
    "op", [op for op in OPERATIONS if any(name.endswith("?") for name in OPERATIONS[op].inputs)]
)
def test_every_mutant_runs_without_the_optional_inputs(op):
    """A layer norm may have a weight and no bias, which no case has."""
    optional = {name.rstrip("?") for name in OPERATIONS[op].inputs if name.endswith("?")}
    case = max((case for case in _OPS if case.op == op), key=lambda case: len(optional & set(case.inputs)))
    whole, there = case.realize(), optional & set(case.inputs)
    for absent in itertools.chain(*(itertools.combinations(sorted(there), n) for n in range(len(there) + 1))):
        inputs = {name: tensor for name, tensor in whole.items() if name not in absent}
        try:
            OPERATIONS[op].answer(Arithmetic(FLOAT64), inputs, OPERATIONS[op].complete(inputs, case.params))
        except (BadInput, KeyError):
            continue  # the operation itself needs it: of two forms of a factor, one
        for mutant in OPERATIONS[op].mutants:
            with_bug(mutant, OPERATIONS[op], inputs, case.params)


@pytest.mark.parametrize(("case", "lost"), [("low-b1-l20-j33-h2-d64", 1.0), ("unseen-b2-l20-j77-h2-d40", 0.0)])
def test_a_missing_maximum_counts_the_mask(case, lost):
    """Where every exponential is 0 all is 0 / 0; a query that sees no key gives zeros as ever."""
    op, named = OPERATIONS["attention"], CASES[f"attention/f32/{case}"]
    (mutant,) = (mutant for mutant in op.mutants if mutant.name == NO_MAXIMUM)
    y = with_bug(mutant, op, named.realize(), named.params)
    assert y is not None and np.isnan(y).mean() == lost


def test_the_table_counts_the_dead():
    table = kill_table(_trials("silu"))
    assert "| cases that fail it under float32 |" in table
    assert "| silu | x sigmoid(1.702 x) | 3 | 3 |" in table


def _serial_linear(inputs, params):
    """Sums in float32, one product after another."""
    x = inputs["x"].values().astype(np.float32)
    weight = inputs["weight"].values().astype(np.float32)
    y = np.zeros((*x.shape[:-1], weight.shape[0]), np.float32)
    for k in range(x.shape[-1]):
        y += x[..., k, None] * weight[:, k]
    return y + inputs["bias"].values() if "bias" in inputs else y


def _winograd_conv2d(inputs, params):
    """F(4x4, 3x3) throughout in float32: Lavin & Gray 2015, section 4.3."""
    x, weight = inputs["x"].values(), inputs["weight"].values().astype(np.float32)
    if weight.shape[2:] != (3, 3) or (params["stride"], params["dilation"], params["groups"]) != (1, 1, 1):
        return None
    B = np.array(
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ],
        np.float32,
    )
    G = np.array(
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ],
        np.float32,
    )
    A = np.array([[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], np.float32)
    top, bottom, left, right = params["padding"]
    N, _, H, W = x.shape
    P, Q = H + top + bottom - 2, W + left + right - 2
    more_p, more_q = -P % 4, -Q % 4
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom + more_p), (left, right + more_q)))
    U = G @ weight @ G.T
    y = np.zeros((N, weight.shape[0], P + more_p, Q + more_q), np.float32)
    for p in range(0, P, 4):
        for q in range(0, Q, 4):
            V = B @ x[:, :, p : p + 6, q : q + 6] @ B.T
            M = np.einsum("kcij,ncij->nkij", U, V)
            y[:, :, p : p + 4, q : q + 4] = A @ M @ A.T
    y = y[:, :, :P, :Q]
    return y + inputs["bias"].values()[:, None, None] if "bias" in inputs else y


def _serial_norm(inputs, params):
    """Mean and variance summed in float32, one number after another."""
    x = inputs["x"].values()
    rows = x.reshape(x.shape[0], params["num_groups"], -1) if "num_groups" in params else x
    n = rows.shape[-1]
    mean = np.cumsum(rows, axis=-1, dtype=np.float32)[..., -1:] / np.float32(n)
    square = (rows - mean) * (rows - mean)
    variance = np.cumsum(square, axis=-1, dtype=np.float32)[..., -1:] / np.float32(n)
    y = ((rows - mean) / np.sqrt(variance + np.float32(params["eps"]))).reshape(x.shape)
    shape = (-1, 1, 1) if "num_groups" in params else (-1,)
    if "weight" in inputs:
        y = y * inputs["weight"].values().reshape(shape) + inputs["bias"].values().reshape(shape)
    return y


_HONEST = {
    "linear": _serial_linear,
    "conv2d": _winograd_conv2d,
    "group_norm": _serial_norm,
    "layer_norm": _serial_norm,
}


@pytest.mark.parametrize("op", _HONEST)
def test_every_case_passes_an_honest_engine_of_another_order(op):
    asked = 0
    for case in (case for case in _OPS if case.op == op):
        inputs = case.realize()
        params = complete(op, inputs, case.params)
        y = _HONEST[op](inputs, params)
        if y is None:
            continue
        asked += 1
        truth = run(op, Arithmetic(FLOAT64), inputs, params)["y"]
        honest = run(op, Arithmetic(FLOAT32), inputs, params)["y"]
        limits = bound(op, FLOAT32, inputs, params, truth)
        judged = judge([measure("y", y, truth, honest, limits, OPERATIONS[op].channel)])
        assert judged.passed, f"{case.name}: {judged.reason}"
    assert asked >= 5
