"""Bounds hold for honest engines, follow the data, and tell precisions apart."""

import math
from dataclasses import replace

import numba
import numpy as np
import pytest

from refsd.cases import CASES
from refsd.golden.bounds import products
from refsd.golden.metrics import measure
from refsd.golden.operations import OPERATIONS, bound, complete, run
from refsd.golden.recipe import Recipe, realize
from refsd.golden.verdict import judge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64, GGML_CPU, PROFILES, TORCH_F16
from refsd.numerics.tensor import StoredTensor, stored

_RNG = np.random.default_rng(7)


def _tensor(*shape: int, size=1.0):
    return stored((_RNG.standard_normal(shape) * size).astype(np.float32))


def _truth(op, inputs, params):
    return run(op, Arithmetic(FLOAT64), inputs, params)["y"]


def _share(op, numerics, inputs, params, y=None, truth=None):
    """max |error| / limit of the reference (or of y)."""
    truth = _truth(op, inputs, params) if truth is None else truth
    y = run(op, Arithmetic(numerics), inputs, params)["y"] if y is None else y
    error = np.abs(y.astype(np.float64) - truth)
    limit = bound(op, numerics, inputs, params, truth).limit
    error[np.isinf(limit)] = 0  # may be anything
    return float(np.max(np.divide(error, limit, out=np.where(error > 0, np.inf, 0), where=limit > 0)))


def _size(case):
    return sum(math.prod(recipe.shape) for recipe in case.inputs.values())


# Without the two million rows of patchify, which only moves: under every profile they take 7 s.
_SAMPLE = [
    case
    for i, case in enumerate(CASES.values())
    if case.op in OPERATIONS and (i % 3 == 0 or "q" in case.name[:12]) and _size(case) < 1_000_000
]


# Operation -> its cases here, the smallest first, which runs every profile's lines without the JIT, too.
_BY_SIZE = {op: sorted((case for case in _SAMPLE if case.op == op), key=_size) for op in OPERATIONS}


def _marked(case):
    """Without the JIT the two smallest cases of an operation run the same lines."""
    large = case not in _BY_SIZE[case.op][:2] or (_size(case) > 20_000 and case is not _BY_SIZE[case.op][0])
    return pytest.param(case, id=case.name, marks=[pytest.mark.jitted] if large else [])


def _profiles(case):
    if numba.config.DISABLE_JIT and case is not _BY_SIZE[case.op][0]:
        return FLOAT32, TORCH_F16, GGML_CPU
    return PROFILES.values()


@pytest.mark.parametrize("case", [_marked(case) for case in _SAMPLE])
def test_the_reference_under_every_profile_stays_inside(case):
    inputs = case.realize()
    truth = _truth(case.op, inputs, case.params)
    for numerics in _profiles(case):
        assert _share(case.op, numerics, inputs, case.params, truth=truth) <= 1, numerics.name


def test_a_serial_float32_sum_stays_inside():
    x, weight = _tensor(9, 300), _tensor(11, 300)
    products = x.values()[:, None, :] * weight.values()
    y = np.zeros((9, 11), np.float32)
    for k in range(300):
        y += products[:, :, k]
    share = _share("linear", FLOAT32, {"x": x, "weight": weight}, {}, y)
    assert 0 < share < 1


def _serial(terms):
    """The sum along the last axis in float32, one term after the other."""
    return np.add.accumulate(terms.astype(np.float32), axis=-1)[..., -1]


def _conforms(op, inputs, params, y):
    truth, honest = (run(op, Arithmetic(n), inputs, params)["y"] for n in (FLOAT64, FLOAT32))
    limits = bound(op, FLOAT32, inputs, params, truth)
    return judge([measure("y", y, truth, honest, limits, OPERATIONS[op].channel)])


@pytest.mark.parametrize("n", [132, 1024, *(pytest.param(n, marks=pytest.mark.jitted) for n in (4096, 10000))])
@pytest.mark.parametrize("value", [1.1, -3.7, 0.3])
def test_serial_sums_of_equal_terms_conform(n, value):
    """Their roundings add up, and all rows have the same error. An error of n roundings is too large."""
    x, weight = (stored(np.full(shape, v, np.float32)) for shape, v in (((127, n), value), ((33, n), 0.7)))
    y = np.broadcast_to(_serial(x.values()[0] * weight.values()[0]), (127, 33))
    assert _conforms("linear", {"x": x, "weight": weight}, {}, y).passed
    assert not _conforms("linear", {"x": x, "weight": weight}, {}, y * np.float32(1 + n * 2.0**-23)).passed

    length = np.sqrt(_serial(np.square(x.values())))[:, None]
    assert _conforms("l2_norm", {"x": x}, {}, x.values() / length).passed
    assert not _conforms("l2_norm", {"x": x}, {}, x.values() / length * np.float32(1 + n * 2.0**-23)).passed


def test_float16_weights_do_not():
    x, weight = _tensor(9, 64), _tensor(11, 64)
    y = x.values() @ weight.values().astype(np.float16).astype(np.float32).T
    assert _share("linear", FLOAT32, {"x": x, "weight": weight}, {}, y) > 1


def test_what_only_moves_must_be_exact():
    x = _tensor(2, 3, 4, 5)
    truth = _truth("upsample_nearest", {"x": x}, {})
    assert not bound("upsample_nearest", FLOAT32, {"x": x}, {}, truth).limit.any()
    assert bound("upsample_nearest", TORCH_F16, {"x": x}, {}, truth).limit.any()


@pytest.mark.parametrize("power", [-40, 30])
def test_a_bound_follows_the_size_of_the_data(power):
    x, weight = _tensor(3, 40), _tensor(5, 40)
    scaled = stored(np.ldexp(x.values(), power))
    small = bound(
        "linear", FLOAT32, {"x": x, "weight": weight}, {}, _truth("linear", {"x": x, "weight": weight}, {})
    )
    inputs = {"x": scaled, "weight": weight}
    large = bound("linear", FLOAT32, inputs, {}, _truth("linear", inputs, {}))
    np.testing.assert_allclose(large.limit, np.ldexp(small.limit, power), rtol=1e-9)


@pytest.mark.parametrize("op", OPERATIONS)
def test_less_precise_numerics_have_the_larger_bound(op):
    case = next(c for c in CASES.values() if c.op == op)
    inputs = case.realize()
    params = complete(op, inputs, case.params)
    truth = _truth(op, inputs, params)
    exact = bound(op, FLOAT64, inputs, params, truth)
    single = bound(op, FLOAT32, inputs, params, truth)
    half = bound(op, TORCH_F16, inputs, params, truth)
    assert exact.limit.shape == truth.shape
    assert (exact.limit <= single.limit).all()
    assert (single.limit <= half.limit).all()
    assert (single.spread <= single.limit).all()


def test_an_overflow_may_be_anything():
    x = _tensor(3, 4, size=1e6)
    truth = _truth("silu", {"x": x}, {})
    limit = bound("silu", TORCH_F16, {"x": x}, {}, truth).limit
    assert np.isinf(limit[np.abs(x.values()) > 65504]).all()


def test_rounded_activations_widen_only_their_weight_type():
    x, weight = _tensor(3, 64), _tensor(5, 64)
    half = stored(weight.values().astype(np.float16))
    plain = bound(
        "linear", GGML_CPU, {"x": x, "weight": weight}, {}, _truth("linear", {"x": x, "weight": weight}, {})
    )
    rounded = bound(
        "linear", GGML_CPU, {"x": x, "weight": half}, {}, _truth("linear", {"x": x, "weight": half}, {})
    )
    assert (rounded.limit > 5 * plain.limit).all()


def test_a_block_type_without_a_bound_is_said():
    numerics = replace(GGML_CPU, activations={"f32": "q4_0"})
    x, weight = _tensor(3, 64), _tensor(5, 64)
    with pytest.raises(NotImplementedError, match="q4_0"):
        bound("linear", numerics, {"x": x, "weight": weight}, {}, np.zeros((3, 5)))


def test_the_spread_of_a_sum_is_that_of_random_orders():
    """Each partial sum s and each product t is rounded by a uniform error of variance u^2/3 s^2, u^2/3 t^2."""
    terms = np.random.default_rng(3).standard_normal(300) + 0.2
    orders = np.random.default_rng(4).permuted(np.tile(terms, (4000, 1)), axis=1)
    rounded = np.square(np.cumsum(orders, axis=1)).sum(axis=1).mean() + np.square(terms).sum()
    squares, result = np.square(terms).sum(), abs(terms.sum())
    limit, spread = products(1e-7, 300, np.abs(terms).sum(), squares, result)
    np.testing.assert_allclose(spread, 1e-7 * np.sqrt(rounded / 3), rtol=0.03)
    np.testing.assert_allclose(limit, 301e-7 * np.abs(terms).sum(), rtol=1e-4)


def limit_of(op, numerics, params=None, **arrays):
    inputs = {
        name: y if isinstance(y, StoredTensor) else stored(np.asarray(y, np.float32)) for name, y in arrays.items()
    }
    truth = _truth(op, inputs, params or {})
    return truth, bound(op, numerics, inputs, params or {}, truth).limit


def test_an_exp_may_be_flushed_before_it_is_subnormal():
    """At x = -87.31 the sigmoid is 2 % above the smallest normal number; refsd's own float32 kernel gives 0.

    Engines flush what is below 2^-125.5, 1.41 times that number.
    """
    truth, limit = limit_of("silu", FLOAT32, x=[-87.3125, -80.0])
    assert abs(truth[0]) < limit[0] < 1.45 * abs(truth[0]) and limit[1] < 1e-3 * abs(truth[1])


def test_a_place_at_a_pixel_may_be_rounded_to_its_other_side():
    """1 / (1 / 3) is below 3 in float32: the window begins one pixel earlier, and that one has a little weight."""
    x = np.zeros((1, 1, 4, 1), np.float32)
    x[0, 0, 2] = 8
    params = {"height": 2, "width": 1, "align_corners": True}
    truth, limit = limit_of("resize_bilinear", FLOAT32, params, x=x)
    assert truth[0, 0, 1, 0] == 0 and 8 * 2.0**-24 < limit[0, 0, 1, 0] < 1e-4
    x[0, 0, 2], x[0, 0, 1] = 0, 8
    assert limit_of("resize_bilinear", FLOAT32, params, x=x)[1][0, 0, 1, 0] < 1e-30


def test_a_block_whose_sum_overflows_float16_may_be_anything():
    """Q8_1 keeps the sum of 32 values in float16: 32 times 2048 is beyond it, 32 times 2000 is not."""
    weight = realize(Recipe((3, 64), type="q5_1", exponent=-19), "weight")
    x = np.stack([np.full(64, 2000.0), np.r_[np.full(32, 2048.0), np.zeros(32)]])
    _, limit = limit_of("linear", GGML_CPU, x=x, weight=weight)
    assert np.isfinite(limit[0]).all() and np.isinf(limit[1]).all()
    assert np.isfinite(limit_of("linear", FLOAT32, x=x, weight=weight)[1]).all()
