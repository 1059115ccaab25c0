"""What torch composes of several operations is rounded after each of them, and the cases can tell."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.golden.operations import bound, complete, run
from refsd.module import Module, Taps
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64, GGML_CPU, TORCH_BF16, TORCH_F16, TORCH_F32
from refsd.numerics.tensor import stored

HALF = pytest.mark.parametrize("numerics", [TORCH_F16, TORCH_BF16], ids=lambda n: n.name)


def sigmoid(x):
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-x.astype(np.float32)))).astype(x.dtype)


# In NumPy's own half-precision arithmetic, which rounds each result.
COMPOSED = {
    "modulate": lambda x, dtype: x["x"] * (dtype(1) + x["scale"][:, None]) + x["shift"][:, None],
    "gated_add": lambda x, dtype: x["x"] + x["gate"][:, None] * x["h"],
    "quick_gelu": lambda x, dtype: x["x"] * sigmoid((np.float32(1.702) * x["x"].astype("f4")).astype(dtype)),
}
MORE = "adaptive_layer_norm", "l2_norm", "softmax", "swiglu_oai"
NAMES = [name for name, case in CASES.items() if case.op in COMPOSED and "/rows-" not in name]


def _marked(name):
    """Without the JIT 65,600 rows take half a minute."""
    return pytest.param(name, marks=[pytest.mark.jitted] if "/rows-" in name else [])


def _as(dtype, case):
    return {name: tensor.values().astype(dtype) for name, tensor in case.realize().items()}


@HALF
@pytest.mark.parametrize("name", NAMES)
def test_each_rounding_is_made(name, numerics):
    case, dtype = CASES[name], numerics.storage_dtype.type
    expected = COMPOSED[case.op](_as(dtype, case), dtype)
    y = run(case.op, Arithmetic(numerics), case.realize(), case.params)["y"]
    assert expected.dtype == y.dtype
    same = (y == expected) | (np.isinf(y.astype(np.float32)) & np.isinf(expected.astype(np.float32)))
    # Two float32 sigmoids differ in their last bit.
    assert same.mean() >= (1.0 if case.op != "quick_gelu" else 0.999)


@HALF
@pytest.mark.parametrize("name", [name for name in NAMES if "/far-" not in name])  # there functions are 0 or x
def test_the_cases_tell_one_rounding_from_several(name, numerics):
    """Rounded once at the end, many elements are others, and nearer to the truth in units of the bound."""
    case, dtype = CASES[name], numerics.storage_dtype.type
    inputs = {key: stored(x.astype(np.float32)) for key, x in _as(dtype, case).items()}
    truth = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    y = run(case.op, Arithmetic(numerics), inputs, case.params)["y"]
    with np.errstate(over="ignore"):
        once = truth.astype(np.float32).astype(dtype)
    assert np.mean(once != y) > 0.1
    limit = bound(case.op, numerics, inputs, case.params, truth).limit
    rms = [np.sqrt(np.mean(((t.astype(np.float64) - truth) / limit) ** 2)) for t in (y, once)]
    assert rms[0] > 1.1 * rms[1]


@HALF
@pytest.mark.parametrize("name", [_marked(name) for name, case in CASES.items() if case.op in (*COMPOSED, *MORE)])
def test_the_bound_holds_where_inputs_are_stored_as_they_are(name, numerics):
    """No input's rounding hides what the roundings between the operations do."""
    case = CASES[name]
    inputs = {key: stored(x.astype(np.float32)) for key, x in _as(numerics.storage_dtype.type, case).items()}
    with np.errstate(over="ignore", invalid="ignore"):
        truth = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
        y = run(case.op, Arithmetic(numerics), inputs, case.params)["y"].astype(np.float64)
    limit = bound(case.op, numerics, inputs, complete(case.op, inputs, case.params), truth).limit
    assert (np.abs(y - truth)[np.isfinite(limit)] <= limit[np.isfinite(limit)]).all()


@pytest.mark.parametrize("numerics", [FLOAT64, FLOAT32, TORCH_F32, GGML_CPU], ids=lambda n: n.name)
def test_where_storage_is_as_wide_as_compute_nothing_is_added_to_the_bound(numerics):
    """Two units of each term, and one of the result."""
    case = CASES["gated_add/f32/plain-n2-l33-d77"]
    inputs = {key: stored(x.astype(np.float32)) for key, x in _as(np.float16, case).items()}
    x = {key: np.abs(tensor.values().astype(np.float64)) for key, tensor in inputs.items()}
    truth = run("gated_add", Arithmetic(FLOAT64), inputs, {})["y"]
    u = np.finfo(numerics.storage_dtype).eps / 2
    size = x["x"] + x["gate"][:, None] * x["h"]
    limit = bound("gated_add", numerics, inputs, {}, truth).limit
    np.testing.assert_allclose(limit, 2 * u * size + u * np.abs(truth), rtol=1e-5)


def test_sums_and_products_are_taps():
    m = Module({}, taps=Taps(ops=True))
    x = np.arange(6.0).reshape(1, 2, 3)
    y = m.multiply(m.add(x, np.ones(3)), 2)
    assert list(m.taps or ()) == ["add", "multiply"]
    np.testing.assert_array_equal(y, 2 * (x + 1))
