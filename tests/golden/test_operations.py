"""The table of operations: what each wants, and that each keeps its numerics."""

import math

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.golden.operations import OPERATIONS, complete, run
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT64, PROFILES
from refsd.numerics.tensor import StoredTensor, stored


def _a(*shape: int, start=0.0) -> StoredTensor:
    return stored((np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 11 - 5 + start) / 4)


def _smallest(op: str):
    """Without the JIT a large one takes a minute."""
    size = lambda case: sum(math.prod(recipe.shape) for recipe in case.inputs.values())
    return min((case for case in CASES.values() if case.op == op), key=size)


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_operation_has_cases_and_keeps_the_storage_type(op):
    case = _smallest(op)
    inputs = case.realize()
    for numerics in PROFILES.values():
        y = run(op, Arithmetic(numerics), inputs, case.params)["y"]
        assert y.dtype == numerics.storage_dtype, numerics.name


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_parameter_has_two_values_among_the_cases(op):
    """A parameter that is the same in all cases may be written into an engine as a constant, unseen."""
    page = OPERATIONS[op]
    for name in page.params:
        assert len({repr({**page.params, **case.params}[name]) for case in page.cases}) > 1, name


def test_at_least_sixty_cases_of_operations():
    assert sum(case.op in OPERATIONS for case in CASES.values()) >= 60


@pytest.mark.parametrize(
    ("op", "inputs", "params", "says"),
    [
        ("convolve", {}, {}, "unknown operation 'convolve'"),
        ("linear", {"x": _a(2, 3)}, {}, "expected x, weight, bias?"),
        ("silu", {"x": _a(2), "y": _a(2)}, {}, "expected x"),
        ("silu", {"x": _a(2)}, {"eps": 1}, "params"),
        ("timestep_embedding", {"t": _a(2)}, {}, "missing params dim"),
    ],
)
def test_what_does_not_fit_is_said(op, inputs, params, says):
    with pytest.raises(BadInput, match=says.replace("?", r"\?")):
        complete(op, inputs, params)


def test_defaults_are_filled_in():
    params = complete("conv2d", {"x": _a(1), "weight": _a(1)}, {"stride": 2})
    assert params == {"stride": 2, "padding": (0, 0, 0, 0), "dilation": 1, "groups": 1}


def test_im2col_times_filters_is_conv2d():
    x, weight = _a(2, 3, 7, 5), _a(4, 3, 3, 2, start=1)
    params = {"stride": 2, "padding": (0, 1, 1, 0)}
    y = run("conv2d", Arithmetic(FLOAT64), {"x": x, "weight": weight}, params)["y"]
    cols = run("im2col", Arithmetic(FLOAT64), {"x": x}, {**params, "kernel": (3, 2)})["y"]
    np.testing.assert_allclose(np.matmul(weight.values().reshape(4, -1), cols).reshape(y.shape), y, atol=1e-12)


def test_causal_is_a_mask_of_minus_infinity_above_the_diagonal():
    q, k, v = _a(2, 5, 2, 8), _a(2, 5, 2, 8, start=1), _a(2, 5, 2, 8, start=2)
    mask = stored(np.where(np.arange(5)[:, None] < np.arange(5), -np.inf, 0).astype(np.float32))
    causal = run("attention", Arithmetic(FLOAT64), {"q": q, "k": k, "v": v}, {"causal": True})["y"]
    masked = run("attention", Arithmetic(FLOAT64), {"q": q, "k": k, "v": v, "mask": mask}, {})["y"]
    np.testing.assert_array_equal(causal, masked)


def test_heads_that_do_not_divide_are_said():
    q, k = _a(2, 5, 3, 8), _a(2, 5, 2, 8, start=1)
    with pytest.raises(BadInput, match="3 heads of queries over 2 of keys"):
        run("attention", Arithmetic(FLOAT64), {"q": q, "k": k, "v": k}, {})


def test_geglu_gates_with_the_second_half():
    x = np.array([[3.0, 0.0]], np.float32)
    assert run("geglu", Arithmetic(FLOAT64), {"x": stored(x)}, {})["y"] == 0
    y = run("geglu", Arithmetic(FLOAT64), {"x": stored(x[:, ::-1].copy())}, {})["y"]
    assert y == 0
    y = run("geglu", Arithmetic(FLOAT64), {"x": stored(np.array([[2.0, 1.0]], np.float32))}, {})["y"]
    np.testing.assert_allclose(y, 2 * 0.8413447460685429)


def test_softmax_adds_the_mask_after_the_scale():
    x = stored(np.zeros((1, 2), np.float32))
    mask = stored(np.array([0, np.log(3)], np.float32))
    y = run("softmax", Arithmetic(FLOAT64), {"x": x, "mask": mask}, {"scale": 0.5})["y"]
    np.testing.assert_allclose(y, [[0.25, 0.75]], rtol=1e-7)
