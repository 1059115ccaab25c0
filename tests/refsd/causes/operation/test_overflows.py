"""NaN by an operation's own formula is that formula's; NaN of which nothing is known is of unknown cause."""

import numpy as np
import pytest
from injection import Bug, Injected, wrong_operation

from refsd.golden.case import Case
from refsd.golden.operations.softmax import NO_MAXIMUM
from refsd.golden.recipe import Recipe
from refsd.numerics.profiles import FLOAT32
from refsd.shrinking.failure import ask, runner_of


def _softmax(dtype):
    def softmax(self, right, x, scale=1.0, mask=None, sinks=None):
        e = np.exp((x * np.float32(scale)).astype(dtype))
        return (e / e.sum(axis=-1, keepdims=True, dtype=np.float32)).astype(np.float32)

    return wrong_operation(softmax=softmax)


def _attention(self, right, q, k, v, scale=None, mask=None, diagonal=None, sinks=None):
    q, k, v = (t.transpose(0, 2, 1, 3) for t in (q, k, v))
    e = np.exp(q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5))
    return (e / e.sum(axis=-1, keepdims=True) @ v).transpose(0, 2, 1, 3)


def _one_pass(dtype):
    def layer_norm(self, right, x, weight, bias, eps):
        x = x.astype(dtype)
        mean = x.mean(axis=-1, keepdims=True)
        variance = (x * x).mean(axis=-1, keepdims=True) - mean * mean
        y = ((x - mean) / np.sqrt(variance + dtype(eps))).astype(np.float32)
        return y * (1 if weight is None else weight) + (0 if bias is None else bias)

    return wrong_operation(layer_norm=layer_norm)


def _tanh(self, right, x, approximate="none"):
    e = np.exp(2 * np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3))
    return x * (e / (1 + e))


def _swiglu(self, right, x, second_gates=False):
    gate, value = np.split(x, 2, axis=-1)
    e = np.exp(gate)
    return gate * e / (1 + e) * value


def _causes(bug: Bug, op: str, inputs: dict[str, Recipe]):
    result = ask(runner_of(), Injected(bug, FLOAT32, None), Case(f"{op}/f32/nan", op, inputs))
    assert result is not None
    return result.causes, result.looks


_QKV = {name: Recipe((1, 20, 2, 40), exponent=e) for name, e in (("q", -9), ("k", -15), ("v", -15))}


@pytest.mark.parametrize(
    ("bug", "op", "inputs", "says"),
    [
        (_softmax(np.float32), "softmax", {"x": Recipe((9, 1100), exponent=-7)}, NO_MAXIMUM),
        (_softmax(np.float32), "softmax", {"x": Recipe((33, 77), exponent=-10)}, NO_MAXIMUM),
        (_softmax(np.float16), "softmax", {"x": Recipe((33, 77), exponent=-12)}, "exp overflows float16"),
        (wrong_operation(attention=_attention), "attention", _QKV, NO_MAXIMUM),
        (_one_pass(np.float16), "layer_norm", {"x": Recipe((5, 64), exponent=-6)}, "squares overflow float16"),
        (
            wrong_operation(gelu=_tanh),
            "gelu_tanh",
            {"x": Recipe((5, 64), exponent=-11)},
            "NaN where exp(x) overflows: the quotient of two infinities",
        ),
        (
            wrong_operation(swiglu=_swiglu),
            "swiglu",
            {"x": Recipe((7, 260), exponent=-7)},
            "NaN where exp(x) overflows: the quotient of two infinities",
        ),
    ],
)
def test_a_formula_that_overflows_is_the_cause(bug, op, inputs, says):
    causes, _ = _causes(bug, op, inputs)
    assert causes and causes[0].startswith(says), causes


@pytest.mark.parametrize("op", ["softmax", "layer_norm"])
def test_other_nan_has_no_cause_and_its_place_is_told(op):
    def lost(case, inputs, y):
        y = y["y"].copy()
        y[1::3] = np.nan
        return {"y": y}

    causes, looks = _causes(Bug(answer=lost), op, {"x": Recipe((33, 77), exponent=-7)})
    assert (causes, looks) == ((), ("NaN in every 3rd index from 1 on of 33 along axis 0, cause unknown",))


def test_memory_that_nobody_wrote_is_told_beside_an_answer_that_changes():
    rng = np.random.default_rng(3)

    def garbage(case, inputs, y):
        y = y["y"].copy()
        y.reshape(-1)[rng.choice(y.size, 12, replace=False)] = 10.0 ** rng.uniform(-37, 37, 12)
        return {"y": y}

    inputs = {"x": Recipe((1, 8, 9, 7), "bf16"), "weight": Recipe((16, 8, 3, 3), "bf16")}
    causes, _ = _causes(Bug(answer=garbage), "conv2d", inputs)
    assert causes[0] == "not the same answer twice"
    assert causes[1].startswith("memory that nobody wrote is read: 12 of 560 elements hold unrelated values, up to")
