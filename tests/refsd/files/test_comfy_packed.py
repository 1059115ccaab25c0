"""ComfyUI's W4A8, AWQ and SVDQuant: read as each element is defined; files that do not fit are said."""

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from naive.quant import w4a8 as naive
from naive.quant.scaled import convrot

from refsd.diagnosis.requantising import deviation
from refsd.files.formats import open_weights
from refsd.files.writers import Spec, write_safetensors
from refsd.kernels.quant.w4a8 import USUAL_TABLE
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import COMFY_INT8, INT4_ROWS, INT8_ROWS
from refsd.numerics.tensor import stored

RNG = np.random.default_rng(5)
E4M3 = ml_dtypes.float8_e4m3fn
ROWS, COLUMNS, RANK = 12, 128, 5
NIBBLES = RNG.integers(-128, 128, (ROWS, COLUMNS // 2)).astype(np.int8)
SIX = RNG.integers(-128, 128, (ROWS, COLUMNS * 3 // 4)).astype(np.int8)
RELATIVE = RNG.uniform(20, 140, (ROWS, COLUMNS // 16)).astype(E4M3)
OF_ROWS = RNG.uniform(0.5, 2, ROWS).astype(np.float32)


def floats(*shape):
    return RNG.uniform(0.5, 2, shape).astype(np.float32)


def w4a8(**changed):
    config = {"format": "asym_w4a8_int8", "convrot_groupsize": 64}
    parts = {
        "weight": NIBBLES,
        "weight_s_rel": RELATIVE,
        "weight_s_channel": OF_ROWS,
        "weight_codebook": USUAL_TABLE,
    }
    return {**parts, "comfy_quant": config} | changed


def w4a4(**changed):
    parts = {"weight": NIBBLES, "weight_scale": OF_ROWS}
    return {**parts, "comfy_quant": {"format": "convrot_w4a4", "convrot_groupsize": 64}} | changed


def awq(**changed):
    parts = {"weight": NIBBLES, "weight_scale": floats(2, ROWS), "weight_zeros": floats(2, ROWS)}
    return {**parts, "comfy_quant": {"format": "awq_w4a16"}} | changed


def svdquant(**changed):
    parts = {
        "weight": NIBBLES,
        "weight_scale": floats(2, ROWS),
        "weight_smooth_factor": floats(COLUMNS),
        "weight_proj_down": floats(COLUMNS, RANK),
        "weight_proj_up": floats(ROWS, RANK),
    }
    return {**parts, "comfy_quant": {"format": "svdquant_w4a4"}} | changed


@pytest.fixture
def opened(tmp_path):
    def write(parts):
        def array(value):
            return np.frombuffer(json.dumps(value).encode(), np.uint8) if isinstance(value, dict) else value

        tensors = {f"a.{part}": stored(array(value)) for part, value in parts.items() if value is not None}
        specs = {name: Spec(t.type, t.shape) for name, t in tensors.items()}
        path = tmp_path / "a.safetensors"
        write_safetensors(path, specs, tensors.values())
        return open_weights(path)

    return write


W4A8 = {
    "a table": w4a8(),
    "integers": w4a8(weight_codebook=None),
    "scales as bytes": w4a8(weight_s_rel=RELATIVE.view(np.uint8)),
    "scales in float32": w4a8(weight_s_rel=RELATIVE.astype(np.float32) / 3),
    "6 bits": w4a8(weight=SIX, weight_codebook=None, weight_s_rel=(RELATIVE.astype(np.float32) / 16).astype(E4M3)),
    "settings apart": w4a8(comfy_quant={"format": "asym_w4a8_int8", "params": {"convrot_groupsize": 64}}),
}


@pytest.mark.parametrize("case", W4A8)
def test_w4a8(opened, case):
    parts = W4A8[case]
    weights = opened(parts)
    assert set(weights) == {"a.weight"} and weights.headers["a.weight"].shape == (ROWS, COLUMNS)
    tensor, scale = weights["a.weight"], parts["weight_s_rel"]
    scale = (scale.view(E4M3) if scale.dtype == np.uint8 else scale).astype(np.float64)
    packed = parts["weight"].view(np.uint8)
    q = naive.decoded(packed, scale, parts["weight_codebook"], 8 * packed.shape[1] // COLUMNS)
    assert tensor.data.tolist() == q and tensor.product_type == "i8/64"
    expected = convrot(np.array(q), OF_ROWS, 64)
    assert np.linalg.norm(tensor.values() - expected) <= 1e-7 * np.linalg.norm(expected)
    some = tensor.rows(np.array([3, 1])).values()
    assert (some == tensor.values()[[3, 1]]).all()


def test_w4a4(opened):
    tensor = opened(w4a4())["a.weight"]
    q = [
        [n - 16 * (n > 7) for byte in row for n in (byte % 16, byte // 16)]
        for row in NIBBLES.view(np.uint8).tolist()
    ]
    assert tensor.data.tolist() == q and tensor.product_type == "i4/64"
    expected = convrot(np.array(q), OF_ROWS, 64)
    assert np.linalg.norm(tensor.values() - expected) <= 1e-7 * np.linalg.norm(expected)
    some = tensor.rows(np.array([3, 1]))
    assert (some.values() == tensor.values()[[3, 1]]).all() and some.product_type == "i4/64"
    assert COMFY_INT8.input_of("i4/64") == replace(INT4_ROWS, rotation=64)


def test_a_layer_that_cannot_be_expanded_is_not_called_expanded(opened):
    weights = opened(awq(weight_zeros=None))
    assert set(weights.unexpanded) == {"a.weight"} and not weights.expanded
    assert set(opened(awq()).expanded) == {"a.weight"}


@pytest.mark.parametrize("parts", [w4a8(), w4a4(), awq(), svdquant()], ids=["w4a8", "w4a4", "awq", "svdquant"])
def test_what_the_codes_cost_is_no_damage(opened, parts):
    """A good copy differs by half a step at most; what differs by whole steps in some rows is changed."""
    tensor = opened(parts)["a.weight"]
    numbers = tensor.values()
    step = np.abs(numbers).max() / 2 ** tensor.coded[0]
    good = (numbers + RNG.uniform(-0.5, 0.5, numbers.shape) * step).astype(np.float32)
    assert tensor.coded[0] == 4 and deviation(stored(good), tensor).within
    good[2:5] = good[3:6]
    assert not deviation(stored(good), tensor).within


def test_comfy_int8_multiplies_w4a8_as_its_operation_does(opened):
    """The profile of int8 is W4A8's too: its codes are int8 before they are multiplied."""
    tensor = opened(w4a8())["a.weight"]
    x = RNG.standard_normal((5, COLUMNS)).astype(np.float32)
    how = replace(INT8_ROWS, rotation=64)
    assert COMFY_INT8.input_of(tensor.product_type) == how
    a = Arithmetic(COMFY_INT8)
    y = a.linear(a.store(x), a.expand(tensor), None, tensor.product_type)
    wide = tensor.data.astype(np.float32)
    direct = a.linear_quantized(a.store(x), wide, OF_ROWS, None, how)
    assert np.linalg.norm((y - direct).astype(np.float64)) < 0.01 * np.linalg.norm(direct.astype(np.float64))


def test_awq(opened):
    parts = awq()
    got = opened(parts)["a.weight"].values()
    for row, column in ((0, 0), (3, 1), (11, 63), (5, 64), (11, 127)):
        code = parts["weight"].view(np.uint8)[row, column // 2] >> 4 * (column % 2) & 15
        group = column // 64
        scale, zero = parts["weight_scale"][group, row], parts["weight_zeros"][group, row]
        assert got[row, column] == np.float32(int(code) - 8) * scale + zero


def test_svdquant(opened):
    parts = svdquant()
    got = opened(parts)["a.weight"].values().astype(np.float64)
    x = np.eye(COLUMNS)
    codes = [[naive.code(row, i, 4, COLUMNS) for i in range(COLUMNS)] for row in NIBBLES.view(np.uint8).tolist()]
    q = np.array([[code - 16 if code > 7 else code for code in row] for row in codes], np.float64)
    w = q.reshape(ROWS, 2, 64) * parts["weight_scale"].T[..., None].astype(np.float64)
    y = (x / parts["weight_smooth_factor"]) @ w.reshape(ROWS, COLUMNS).T
    y += x @ parts["weight_proj_down"].astype(np.float64) @ parts["weight_proj_up"].T.astype(np.float64)
    assert abs(got - y.T).max() < 1e-5


REFUSED = {
    "no groups' scales": (w4a8(weight_s_rel=None), 'without "a.weight_s_rel"'),
    "no scale of the rows": (w4a8(weight_s_channel=None), 'without "a.weight_s_channel"'),
    "scales of other rows": (w4a8(weight_s_channel=OF_ROWS[:-1]), "f32 [11]; f32 [12] expected"),
    "fewer groups": (w4a8(weight_s_rel=RELATIVE[:, :-1]), "rows of 64 bytes for 112 codes"),
    "groups of other rows": (w4a8(weight_s_rel=RELATIVE[:-1]), "f8_e4m3 [11, 8]; f8_e4m3 [12, 'any'] expected"),
    "no group": (w4a8(weight_s_rel=RELATIVE[:, :0]), "rows of 64 bytes for 0 codes"),
    "a table of 15": (w4a8(weight_codebook=USUAL_TABLE[:-1]), "f32 [15]; f32 [16] expected"),
    "6 bits and a table": (w4a8(weight=SIX), "rows of 96 bytes for 128 codes"),
    "a vector": (w4a8(weight=NIBBLES[0]), "i8 [64] in the format asym_w4a8_int8; a matrix of i8"),
    "floats": (w4a8(weight=OF_ROWS[:, None]), "f32 [12, 1] in the format asym_w4a8_int8"),
    "a group that is a text": (
        w4a8(comfy_quant={"format": "asym_w4a8_int8", "group_size": "16"}),
        "its group_size is 16; a positive integer",
    ),
    "a rotation of 3": (
        w4a8(comfy_quant={"format": "asym_w4a8_int8", "convrot_groupsize": 3}),
        "rotated in groups of 3; a power of 4",
    ),
    "a rotation of 2^30": (
        w4a8(comfy_quant={"format": "asym_w4a8_int8", "convrot_groupsize": 2**30}),
        "rotated in groups of 1073741824",
    ),
    "AWQ's groups": (awq(comfy_quant={"format": "awq_w4a16", "group_size": 48}), "no whole groups of 48"),
    "AWQ's zeros": (awq(weight_zeros=floats(ROWS, 2)), "f32 [12, 2]; f32 [2, 12] expected"),
    "SVDQuant's ranks": (svdquant(weight_proj_up=floats(ROWS, 4)), "f32 [12, 4]; f32 [12, 5] expected"),
    "SVDQuant's vector": (svdquant(weight_proj_down=floats(COLUMNS)), "f32 [128]; f32 [128, 'any'] expected"),
    "SVDQuant's smoothing": (svdquant(weight_smooth_factor=floats(64)), "f32 [64]; f32 [128] expected"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(opened, case):
    parts, says = REFUSED[case]
    with pytest.raises(BadInput) as error:
        opened(parts)
    assert says in str(error.value) and '"a.weight' in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("part", ["weight_s_rel", "weight_codebook"])
def test_levels_that_are_not_finite_are_said(opened, part):
    broken = w4a8()[part].copy()
    broken.reshape(-1)[3] = np.nan
    with pytest.raises(BadInput, match="is not finite"):
        opened(w4a8(**{part: broken}))["a.weight"]


def test_corrections_are_added_to_the_rotated_groups(opened):
    correction = floats(COLUMNS // 16, ROWS)
    weights = opened(w4a8(weight_correction=correction, weight_codebook=None))
    assert (weights.headers["a.weight"].type, weights.headers["a.weight"].shape) == ("f32", (ROWS, COLUMNS))
    q = np.array(naive.decoded(NIBBLES.view(np.uint8), RELATIVE.astype(np.float64), None, 4))
    turned = np.einsum("or,o->or", q, OF_ROWS) + np.kron(correction.T, np.ones(16))
    expected = convrot(turned, np.ones(ROWS), 64)
    found = weights["a.weight"].values()
    assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)


def test_corrections_that_do_not_fit_are_said(opened):
    with pytest.raises(BadInput, match=r"f32 \[12, 8\]; f32 \[8, 12\] expected"):
        opened(w4a8(weight_correction=floats(ROWS, COLUMNS // 16)))
