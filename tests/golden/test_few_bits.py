"""Products in few bits: the reference against fractions, the bound against honest engines and against bugs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import record_onnxruntime as onnxruntime
import record_sageattention as sageattention
from naive.quant import activation_codes as naive
from naive.quant import svdquant as naive_svdquant
from naive.quant import w4a8 as naive_w4a8
from naive.quant.scaled import hadamard, rotate
from record_comfy_kitchen import RECORDED, RECORDS, places

from refsd.cases import CASES
from refsd.engines.sageattention import NUMERICS as SAGEATTENTION
from refsd.golden.few_bits import moved_to_few_bits, moves
from refsd.golden.mutations import with_bug
from refsd.golden.operations import OPERATIONS, bound, run
from refsd.kernels.quant.activation_codes import less_zero, to_grid
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import (
    COMFY_FP8,
    COMFY_INT8,
    FLOAT32,
    FLOAT64,
    FP8_TENSOR,
    INT8_GROUPS,
    INT8_ROWS,
    LLM_ROWS,
    MXFP4,
    MXFP8,
    NVFP4,
    SDNQ_ROWS,
    TORCHAO_ROWS,
    UINT8_TENSOR,
)
from refsd.numerics.quantization import quantize, rotated, rounded, zeros
from refsd.numerics.rounding import Rounding
from refsd.numerics.tensor import Scaling, StoredTensor, stored

_UINT8_ROWS = replace(UINT8_TENSOR, scale="row")
_RULES = (
    *(INT8_ROWS, TORCHAO_ROWS, INT8_GROUPS, FP8_TENSOR, NVFP4, MXFP8, replace(INT8_ROWS, rotation=16)),
    *(replace(MXFP8, block_scale="e8m0_floor"), MXFP4, replace(MXFP4, block_scale="e8m0_floor")),
    *(UINT8_TENSOR, _UINT8_ROWS, replace(SDNQ_ROWS, fewest=8), replace(LLM_ROWS, outliers=2.5)),
)


def _same(y):
    return y


def _case(op, label):
    return next(case for case in OPERATIONS[op].cases if f"/{label}-" in case.name)


def test_int8_is_the_fractions_product():
    case = _case("linear_int8", "batch")
    inputs = case.realize()
    x, w, s, b = (inputs[name].values() for name in ("x", "weight", "weight_scale", "bias"))
    expected = naive.product(x.reshape(18, 96), w, s, "int8", 127).reshape(2, 9, 20) + b
    y = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    assert abs(y - expected).max() <= 1e-14 * abs(expected).max()


@pytest.mark.parametrize("label", ["zero-batch", "zero-rows", "zero-positive"])
def test_int8_with_zero_points_is_the_product_of_codes_and_its_corrections(label):
    case = _case("linear_int8", label)
    inputs = case.realize()
    x, w, z, s, b = (inputs[name].values() for name in ("x", "weight", "weight_zero", "weight_scale", "bias"))
    expected = naive.product_with_zero_points(x.reshape(-1, x.shape[-1]), w, z, s)
    y = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    assert abs(y - (expected.reshape(y.shape) + b)).max() <= 1e-13 * abs(y).max()


def test_zero_has_a_code_and_the_ends_are_reached():
    x = np.array([[-1, 0, 2.3, 0.004], [5, 7, 9, 8], [-3, -2, -1, -9], [0, 0, 0, 0]], np.float32)
    q = quantize(x, _UINT8_ROWS, _same)
    _, zeros, _ = naive.with_zero_points(x)
    codes = q.values + np.array(zeros, np.float32)[:, None]
    assert zeros == [77, 0, 255, 0]
    assert codes.tolist() == [[0, 77, 255, 77], [142, 198, 255, 227], [170, 198, 227, 0], [0, 0, 0, 0]]
    assert not rounded(x, _UINT8_ROWS, _same)[x == 0].any()
    given = quantize(x, _UINT8_ROWS, _same, np.array([0.02], np.float32), np.array([100], np.uint8))
    assert (given.values.min(), given.values.max()) == (-100, 155)


def test_both_ends_of_a_span_may_be_off():
    """Inputs that storing them has moved: the least down, the largest up."""
    x, dx = np.array([[-1.0, 0.25, 3.0]]), np.full((1, 3), 0.01)
    bits = moves(x, dx, _UINT8_ROWS, "float64", "float64")
    wider = quantize(x + np.array([[-0.01, 0, 0.01]]), _UINT8_ROWS, _same)
    assert (abs(wider.scale - bits.scale) <= bits.relative * bits.scale).all()
    assert (abs(wider.values - bits.values) <= bits.moved).all()


def test_signed_codes_with_a_zero_point_are_the_same():
    x = np.random.default_rng(5).standard_normal((20, 64)).astype(np.float32)
    signed, unsigned = (quantize(x, replace(_UINT8_ROWS, type=kind), _same) for kind in ("int8", "uint8"))
    assert (signed.values == unsigned.values).all() and (signed.scale == unsigned.scale).all()


def test_a_zero_point_between_two_codes_may_be_either():
    """-min / scale is a tie but for the scale's last bit: the least number has one of two codes."""
    x = np.array([[-1, 0.5, 509]], np.float64)
    bits = moves(x, np.zeros(x.shape), _UINT8_ROWS, "float32", "float32")
    assert bits.values.tolist() == [[0, 0, 254]] and bits.moved.tolist() == [[1, 0, 1]]
    assert moves(x + 0.1, np.zeros(x.shape), _UINT8_ROWS, "float32", "float32").moved.max() == 0


@pytest.mark.parametrize("case", OPERATIONS["conv2d_int8"].cases, ids=lambda case: case.name)
def test_a_convolution_in_int8_is_its_sums_of_whole_numbers(case):
    inputs, how = case.realize(), OPERATIONS["conv2d_int8"].complete(case.realize(), case.params)
    x, w = (inputs[name].values() for name in ("x", "weight"))
    own = inputs["weight_zero"].values() if "weight_zero" in inputs else np.zeros(1, np.int64)
    w = w.astype(np.int64) - own.astype(np.int64).reshape(-1, 1, 1, 1)
    ends, widest, zero = (-128, 127), np.abs(x).max().astype(np.float64) / 127, 0
    if how["zero_point"]:
        ends, widest = (0, 255), (max(x.max(), 0) - min(x.min(), 0)).astype(np.float64) / 255
        zero = int(inputs["x_zero"].values()[0]) if "x_zero" in inputs else np.rint(-min(x.min(), 0) / widest)
    scale = inputs["x_scale"].values()[0] if "x_scale" in inputs else widest
    codes = (np.clip(np.rint(x / scale) + zero, *ends) - zero).astype(np.int64)
    (top, _, left, _), (down, across) = how["padding"], np.broadcast_to(how["stride"], 2)
    y = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    for (n, k, p, q), actual in np.ndenumerate(y):
        total = 0
        for r, s in np.ndindex(w.shape[2:]):
            row, column = p * down + r - top, q * across + s - left
            if 0 <= row < x.shape[2] and 0 <= column < x.shape[3]:
                total += int(codes[n, :, row, column] @ w[k, :, r, s])
        scales = inputs["weight_scale"].values().astype(np.float64)
        expected = total * scale * scales[k % len(scales)]
        expected += inputs["bias"].values()[k] if "bias" in inputs else 0.0
        if "y_scale" in inputs:
            expected = _in_codes(expected, inputs)
        assert abs(actual - expected) <= 1e-12 * np.abs(y).max(), (n, k, p, q)


def _in_codes(y, inputs):
    """Divide by the scale, round, add the zero point, clip, and back."""
    step = float(inputs["y_scale"].values()[0])
    zero, ends = (int(inputs["y_zero"].values()[0]), (0, 255)) if "y_zero" in inputs else (0, (-128, 127))
    return step * (np.clip(np.rint(y / step) + zero, *ends) - zero)


@pytest.mark.parametrize("label", ["result-batch", "zero-result"])
def test_results_in_8_bits_are_the_product_rounded(label):
    case = _case("linear_int8", label)
    inputs = case.realize()
    plain = {name: tensor for name, tensor in inputs.items() if not name.startswith("y_")}
    y, before = (run(case.op, Arithmetic(FLOAT64), given, case.params)["y"] for given in (inputs, plain))
    assert (y == _in_codes(before, inputs)).all() and (y != before).mean() > 0.9
    moved = bound(case.op, FLOAT32, inputs, case.params, y).limit
    assert np.median(moved) < 1e-6 < 0.5 * float(inputs["y_scale"].values()[0])


def test_a_convolution_in_int8_whose_filters_miss_a_pixel_has_no_scale():
    shapes = {"x": (1, 3, 8, 8), "weight": (2, 3, 3, 3)}
    fits = OPERATIONS["conv2d_int8"].fits
    assert fits(shapes, {"stride": 2, "padding": (1, 1, 1, 1)}) and fits(shapes, {"stride": 1, "padding": (0,) * 4})
    assert not fits(shapes, {"stride": 2, "padding": (0,) * 4})


@pytest.mark.parametrize("label", ["groups4", "plain-ties"])
def test_w4a8_is_the_int8_product_of_each_code(label):
    """The rotation is float64's; the codes are far enough from ties that it does not matter."""
    case = _case("linear_w4a8", label)
    inputs = case.realize()
    x, w, d, s, b = (inputs[name].values() for name in ("x", "weight", "group_scale", "weight_scale", "bias"))
    table = inputs["codebook"].values() if "codebook" in inputs else None
    weight = np.array(naive_w4a8.decoded(w, d.astype(np.float64), table, 4))
    expected = naive.product(rotate(x, case.params["rotation"]), weight, s, "int8", 127) + b
    y = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    assert abs(y - expected).max() <= 1e-12 * abs(expected).max()


@pytest.mark.parametrize("label", ["rotated64", "rotated16-outliers", "long-positive"])
def test_w4a4_is_the_product_of_codes_of_4_bits(label):
    case = _case("linear_w4a4", label)
    inputs = case.realize()
    x, w, s, b = (inputs[name].values() for name in ("x", "weight", "weight_scale", "bias"))
    weight = np.array([[n - 16 * (n > 7) for byte in row for n in (byte % 16, byte // 16)] for row in w.tolist()])
    expected = naive.product(rotate(x, case.params["rotation"]), weight, s, "int4", 7) + b
    y = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    assert abs(y - expected).max() <= 1e-12 * abs(expected).max()


@pytest.mark.parametrize("label", ["tokens", "zero-odd", "zero-short"])
def test_w4a16_is_the_product_of_each_code(label):
    case = _case("linear_w4a16", label)
    inputs, group = case.realize(), case.params["group"]
    x, w, s, b = (inputs[name].values().astype(np.float64) for name in ("x", "weight", "group_scale", "bias"))
    zero = inputs["group_zero"].values().tolist() if "group_zero" in inputs else np.full(s.shape, 8).tolist()
    weight = np.zeros((len(w), x.shape[-1]))
    for o, k in np.ndindex(weight.shape):
        byte = int(w[o, k // 2])
        weight[o, k] = s[o, k // group] * ((byte // 16 if k % 2 else byte % 16) - zero[o][k // group])
    y = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    assert abs(y - (x @ weight.T + b)).max() <= 1e-13 * abs(y).max()


@pytest.mark.parametrize("label", ["one-group", "batch", "unsigned"])
def test_svdquant_is_the_product_of_each_group_and_of_its_branch(label):
    case = _case("linear_svdquant", label)
    inputs, parts = case.realize(), ("x", "smooth", "weight", "group_scale", "down", "up")
    x, *others, b = (inputs[name].values() for name in (*parts, "bias"))
    expected = naive_svdquant.product(x.reshape(-1, x.shape[-1]).astype(np.float64), *others, label == "unsigned")
    y = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    assert abs(y - (expected.reshape(y.shape) + b)).max() <= 1e-12 * abs(y).max()


def test_nvfp4_is_the_search_of_every_code():
    case = _case("linear_nvfp4", "odd")
    inputs = case.realize()
    x, w, d, s, b = (inputs[name].values() for name in ("x", "weight", "block_scale", "weight_scale", "bias"))
    rows, scale = naive.nvfp4_rows(x)
    expected = scale * float(s[0]) * rows @ naive.nvfp4_weight(w, d.astype(np.float64)).T + b
    y = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    assert abs(y - expected).max() <= 1e-13 * abs(expected).max()


@pytest.mark.parametrize("case", OPERATIONS["linear_mxfp8"].cases, ids=lambda case: case.name)
def test_mxfp8_is_the_search_of_every_code_and_power(case):
    inputs, how = case.realize(), OPERATIONS[case.op].complete(case.realize(), case.params)
    x, w, codes = (inputs[name].values() for name in ("x", "weight", "block_scale"))
    weight = w.astype(np.float64) * np.repeat(2.0 ** (codes.astype(int) - 127), 32, axis=1)
    rows = naive.mx_rows(x, how["activations"], how["scales"] == "up")
    expected = rows @ weight.T + (inputs["bias"].values() if "bias" in inputs else 0.0)
    y = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    assert abs(y - expected).max() <= 1e-13 * abs(expected).max()


@pytest.mark.parametrize("label", ["tokens", "floor-tokens", "floor-powers"])
def test_mxfp4_is_the_search_of_every_code_and_power(label):
    """Of two codes in a byte the first is in the lower half."""
    case = _case("linear_mxfp4", label)
    inputs = case.realize()
    x, w, codes, bias = (inputs[name].values() for name in ("x", "weight", "block_scale", "bias"))
    weight = naive.nvfp4_weight(w >> 4 | w << 4, np.repeat(2.0 ** (codes.astype(int) - 127), 2, axis=1))
    expected = naive.mx_rows(x, "f4_e2m1", not case.params) @ weight.T + bias
    y = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    assert abs(y - expected).max() <= 1e-13 * abs(expected).max()


@pytest.mark.parametrize("case", OPERATIONS["linear_fp8_blocks"].cases, ids=lambda case: case.name)
def test_fp8_in_blocks_is_the_product_of_each_block(case):
    inputs = case.realize()
    x, w, s = (inputs[name].values() for name in ("x", "weight", "block_scale"))
    rows, expected = x.reshape(-1, x.shape[-1]), np.zeros((x.size // x.shape[-1], len(w)))
    for p, q in np.ndindex(s.shape):
        out, columns = slice(128 * p, 128 * p + 128), slice(128 * q, 128 * q + 128)
        codes, scales = naive.rounded_rows(rows[:, columns], "f8_e4m3", 448)
        part = np.array(codes, np.float64) @ w[out, columns].astype(np.float64).T
        expected[:, out] += np.array(scales, np.float64)[:, None] * float(s[p, q]) * part
    y = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    expected = expected.reshape(y.shape) + (inputs["bias"].values() if "bias" in inputs else 0.0)
    assert abs(y - expected).max() <= 1e-13 * abs(expected).max()


def test_the_two_rules_part_where_the_largest_number_is_a_power_of_two_and_where_it_is_clipped():
    x = np.zeros((3, 32), np.float32)
    x[:, :2] = [[256, 1], [480, 1], [448, 1]]
    up, floor = (quantize(x, replace(MXFP8, block_scale=kind), _same).values for kind in ("e8m0", "e8m0_floor"))
    assert up[:, 0].tolist() == [256, 480, 448] and floor[:, 0].tolist() == [256, 448, 448]


def test_powers_of_two_are_in_doubt_on_one_side_alone():
    """At a power of two a logarithm is exact; beside it an engine may have either scale."""
    x = np.zeros((4, 32))
    x[:, :2] = np.array([[448, 52.3], [448 * (1 + 2e-8), 52.3], [2, 0.17], [2 - 1e-7, 0.17]])
    for kind, doubted in (("e8m0", [False, True, False, False]), ("e8m0_floor", [False, False, False, True])):
        how = replace(MXFP4, block_scale=kind)
        factor = np.where(kind == "e8m0", 6 / 448, 1.0)
        bits = moves(x * factor, np.zeros(x.shape), how, "float32", "float32")
        assert ((bits.moved > 0).any(axis=1) == doubted).all(), kind


def test_a_rotated_weight_is_multiplied_in_its_own_basis():
    """(W H)(H x) = W x: what rounding to int8 adds is all that is left."""
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((5, 64)), rng.integers(-127, 128, (7, 64)).astype(np.float64)
    H = np.kron(np.eye(4), hadamard(16))
    y = Arithmetic(FLOAT64).linear_quantized(x, w, np.ones(1), None, replace(INT8_ROWS, rotation=16))
    z = x @ H
    scale = abs(z).max(axis=1, keepdims=True) / 127
    assert abs(y - scale * (np.rint(z / scale) @ w.T)).max() < 1e-10
    assert 0 < abs(y - x @ (w @ H).T).max() < 64 * 127 * scale.max()


@pytest.mark.parametrize("how", _RULES, ids=str)
@pytest.mark.parametrize("order", ["divide", "reciprocal"])
def test_codes_of_honest_engines_are_inside(how, order):
    """An engine in float32 that divides, and one that multiplies by the reciprocal of its scale."""
    x = np.random.default_rng(2).standard_normal((40, 192)).astype(np.float32)
    x[3] = 0
    bits = moves(x.astype(np.float64), np.zeros(x.shape), how, "float32", "float32")
    q = quantize(x, how, _same)
    values = q.values
    if order == "reciprocal" and not how.block:
        z = rotated(x, how.rotation) if how.rotation else x
        inverse = np.divide(np.float32(1), q.scale, out=np.zeros_like(q.scale), where=q.scale != 0)
        grid = less_zero(how.grid, zeros(x, how, q.scale)) if how.zero_point else how.grid
        values = to_grid(z * inverse, grid, how.rounding)
    assert (abs(values - bits.values) <= bits.moved).all()
    # A step is 1 / 127 of the largest at least; scales of groups in float32 move their values by 2^-24.
    assert (bits.moved <= 1e-6 * abs(bits.values).max()).mean() > 0.99
    assert (abs(q.scale - bits.scale) <= bits.relative * bits.scale).all()


@pytest.mark.parametrize("how", _RULES, ids=str)
@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_the_bound_of_a_round_trip_holds(how, storage):
    numerics = replace(FLOAT32, storage=storage)
    x = np.random.default_rng(3).standard_normal((20, 128)).astype(numerics.storage_dtype)
    wide = x.astype(np.float64)
    error = abs(rounded(x.astype(np.float32), how, Rounding(numerics).settled) - wide)
    limit = moved_to_few_bits(wide, how, storage)
    assert (error <= limit + 1e-6 * abs(wide).max()).all()
    assert np.sqrt(np.mean(limit**2)) < 12 * np.sqrt(how.rotation or 1) * np.sqrt(np.mean(error**2))


def test_the_bound_of_int8_is_sharper_by_orders_than_a_step():
    case = _case("linear_int8", "rotated256")
    inputs = case.realize()
    truth = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    limit = bound(case.op, FLOAT32, inputs, case.params, truth).limit
    assert np.sqrt(np.mean(limit**2)) < 1e-6 * np.sqrt(np.mean(truth**2))


def test_profiles_round_the_input_of_scaled_weights_and_rotate_it_with_them():
    rng = np.random.default_rng(4)
    codes = rng.integers(-127, 128, (8, 64)).astype(np.int8)
    plain = StoredTensor("i8", (8, 64), codes, Scaling(np.ones(1, np.float32)))
    turned = StoredTensor("i8", (8, 64), codes, Scaling(np.ones(1, np.float32), rotation=16))
    assert COMFY_INT8.input_of(plain.product_type) == INT8_ROWS
    assert COMFY_INT8.input_of(turned.product_type) == replace(INT8_ROWS, rotation=16)
    assert COMFY_INT8.input_of("bf16") is None and COMFY_FP8.input_of("f8_e5m2") == FP8_TENSOR
    x = rng.standard_normal((5, 64)).astype(np.float32)
    a = Arithmetic(replace(COMFY_INT8, storage="float32"))
    y = a.linear(x, a.expand(turned), None, turned.product_type)
    direct = a.linear_quantized(
        x, codes.astype(np.float32), np.ones(1, np.float32), None, replace(INT8_ROWS, rotation=16)
    )
    assert abs(y - direct).max() < 1e-5 * abs(direct).max()
    unrotated = a.linear(x, a.expand(turned), None, "i8")
    assert abs(unrotated - direct).max() > 1e-3 * abs(direct).max()


def test_columns_of_outliers_are_kept_and_set_no_scale():
    x = np.array([[[1, 2.54, 6]], [[0.3, -6, 1.27]]], np.float32)
    y = rounded(x, LLM_ROWS, _same)
    assert (y[..., 1:] == x[..., 1:]).all() and y[..., 0] == pytest.approx(np.array([[1.0], [0.3]]), abs=1e-6)
    assert (y[1, 0, 0] != rounded(x, replace(LLM_ROWS, outliers=9), _same)[1, 0, 0]) and not np.isin(0, y)
    assert not moved_to_few_bits(x.astype(np.float64), LLM_ROWS, "float32")[..., 1:].any()


def test_fewer_rows_than_an_engine_rounds_are_kept():
    x = np.random.default_rng(6).standard_normal((2, 16, 64)).astype(np.float32)
    assert (rounded(x[:, :15], SDNQ_ROWS, _same) == x[:, :15]).all() and (rounded(x, SDNQ_ROWS, _same) != x).any()
    assert not moved_to_few_bits(x[:, :15].astype(np.float64), SDNQ_ROWS, "bfloat16").any()


def test_quotients_that_are_not_stored_make_other_codes():
    x = np.random.default_rng(7).standard_normal((40, 64)).astype(np.float32)
    settled = Rounding(COMFY_INT8).settled
    wide, narrow = (quantize(x, how, settled).values for how in (SDNQ_ROWS, INT8_ROWS))
    assert (wide == quantize(x, INT8_ROWS, _same).values).all() and 0.02 < (wide != narrow).mean() < 0.5


def test_groups_that_do_not_divide_a_row_are_said():
    with pytest.raises(BadInput, match="rows of 77 are no whole groups of 16"):
        rounded(np.ones((2, 77), np.float32), replace(INT8_ROWS, rotation=16), _same)


def test_rows_of_zeros_stay_zero():
    x = np.zeros((3, 32), np.float32)
    for how in _RULES:
        assert not rounded(x, how, _same).any(), how
    x = stored(x)
    weight = stored(np.ones((4, 32), np.int8))
    y = run(
        "linear_int8",
        Arithmetic(FLOAT32),
        {"x": x, "weight": weight, "weight_scale": stored(np.ones(1, np.float32))},
        {},
    )
    assert not y["y"].any()


@pytest.mark.parametrize("name", RECORDS)
def test_recorded_answers_of_comfy_kitchen(name):
    """comfy-kitchen 0.2.40 in float32: within the bound, and bit for bit where products are integers."""
    case = CASES[name]
    inputs = case.realize()
    truth, ours = (run(case.op, Arithmetic(n), inputs, case.params)["y"] for n in (FLOAT64, FLOAT32))
    limit = bound(case.op, FLOAT32, inputs, case.params, truth).limit
    theirs = np.array(json.loads(RECORDED.read_text())["answers"][name])
    at = places(name, truth.size)
    assert (abs(theirs - truth.ravel()[at]) <= limit.ravel()[at]).all()
    integers = case.op in ("linear_int8", "linear_w4a8")
    assert not integers or (theirs == ours.ravel()[at]).all()


@pytest.mark.parametrize("name", onnxruntime.RECORDS)
def test_recorded_answers_of_onnxruntime(name):
    """onnxruntime 1.32.0's fused products: within the bound, whose unit is the last place, not a step of a code."""
    case = CASES[name]
    inputs = case.realize()
    truth = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    limit = bound(case.op, FLOAT32, inputs, case.params, truth).limit.ravel()
    theirs = np.array(json.loads(onnxruntime.RECORDED.read_text())["answers"][name])
    at = places(name, truth.size)
    assert (abs(theirs - truth.ravel()[at]) <= limit[at]).all()


@pytest.mark.parametrize("name", sageattention.RECORDS)
def test_recorded_answers_of_sageattention(name):
    """SageAttention 1.0.6, weights and values in float16: within the bound, far from attention without codes."""
    case = CASES[name]
    inputs = case.realize()
    truth = run(case.op, Arithmetic(FLOAT64), inputs, case.params)["y"]
    limit = bound(case.op, SAGEATTENTION, inputs, case.params, truth).limit.ravel()[:: sageattention.STRIDE]
    theirs = np.array(json.loads(sageattention.RECORDED.read_text())["answers"][name])
    error = abs(theirs - truth.ravel()[:: sageattention.STRIDE])
    assert (error <= limit).all()
    unrounded = run("attention", Arithmetic(FLOAT64), inputs, {"scale": case.params.get("scale")})["y"]
    assert np.linalg.norm(error) < 0.05 * np.linalg.norm(theirs - unrounded.ravel()[:: sageattention.STRIDE])


@pytest.mark.parametrize(
    ("op", "label", "shape", "bug"),
    [
        ("linear_fp8", "row-x1x320", None, "activations' scale of each channel, not of each row"),
        ("linear_int8", "batch", (1, 9, 96), "activations' scale taken over the items, not over the channels"),
    ],
)
def test_scales_along_an_axis_of_one_are_no_bug(op, label, shape, bug):
    """Each number would have a scale of its own, and the answer would be that of widened weights."""
    case = next(case for case in OPERATIONS[op].cases if f"/{label}" in case.name)
    inputs = case.realize()
    if shape:
        inputs = {**inputs, "x": stored(inputs["x"].values()[:1])}
    assert inputs["x"].shape == (shape or (1, 320))
    params = OPERATIONS[op].complete(inputs, case.params)
    mutant = next(m for m in OPERATIONS[op].mutants if m.name == bug)
    assert with_bug(mutant, OPERATIONS[op], inputs, params) is None
