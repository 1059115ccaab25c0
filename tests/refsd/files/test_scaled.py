"""ComfyUI's scaled files: the scale joins its weight, its helpers leave the list, what does not fit is refused."""

import json

import ml_dtypes
import numpy as np
import pytest
from naive.quant import scaled as naive

from refsd.diagnosis.statistics import pieces
from refsd.files.dequantize import Expansion
from refsd.files.finite import not_finite
from refsd.files.formats import open_weights
from refsd.files.writers import Spec, write_safetensors
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored

RNG = np.random.default_rng(0)
F8 = RNG.standard_normal((3, 8)).astype(ml_dtypes.float8_e4m3fn)
I8 = RNG.integers(-127, 128, (3, 32), np.int8)
CONVROT = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 16}
ROWS = np.float32([[0.5], [0.25], [3]])


def text(config):
    return np.frombuffer(json.dumps(config).encode(), np.uint8)


@pytest.fixture
def file(tmp_path):
    def write(arrays, metadata=None):
        tensors = {name: stored(np.asarray(array)) for name, array in arrays.items()}
        path = tmp_path / "a.safetensors"
        specs = {name: Spec(t.type, t.shape) for name, t in tensors.items()}
        write_safetensors(path, specs, tensors.values(), metadata)
        return path

    return write


def test_old_scaled_fp8(file):
    arrays = {"a.weight": F8, "a.scale_weight": np.float32(0.3), "a.scale_input": np.float32([1.0])}
    weights = open_weights(file({"scaled_fp8": np.zeros(0, ml_dtypes.float8_e4m3fn), **arrays, "b": np.float32(1)}))
    assert set(weights) == {"a.weight", "b"}
    assert weights["a.weight"].type == "f8_e4m3"
    assert (weights["a.weight"].values() == F8.astype(np.float32) * np.float32(0.3)).all()


@pytest.mark.parametrize("inside", [True, False])
def test_fp8_of_today(file, inside):
    config = {"format": "float8_e4m3fn"}
    arrays = {"a.weight": F8, "a.weight_scale": np.float32([0.3]), "a.input_scale": np.float32(2)}
    if inside:
        path = file({**arrays, "a.comfy_quant": text(config)})
    else:
        path = file(arrays, {"_quantization_metadata": json.dumps({"layers": {"a": config}})})
    weights = open_weights(path)
    assert list(weights) == ["a.weight"]
    assert (weights["a.weight"].values() == F8.astype(np.float32) * np.float32(0.3)).all()


def test_plain_fp8_has_no_scale(file):
    weights = open_weights(file({"a.weight": F8, "a.bias": F8[0].astype(ml_dtypes.float8_e5m2)}))
    assert weights["a.weight"].scaling is None
    assert (weights["a.weight"].values() == F8.astype(np.float32)).all()
    assert weights["a.bias"].values().dtype == np.float32


@pytest.mark.parametrize("scale", [ROWS, ROWS[:, 0], ROWS[:1, 0], ROWS[0, 0]])
def test_int8(file, scale):
    weights = open_weights(file({"a.weight": I8, "a.weight_scale": scale}))
    expected = naive.int8(I8, np.broadcast_to(np.reshape(scale, (-1, 1)), (3, 1)))
    assert (weights["a.weight"].values() == expected.astype(np.float32)).all()


def test_convrot(file):
    path = file({"a.weight": I8, "a.weight_scale": ROWS, "a.comfy_quant": text(CONVROT)})
    tensor = open_weights(path)["a.weight"]
    expected = naive.convrot(I8, ROWS, 16)
    assert tensor.scaling.rotation == 16
    assert abs(tensor.values() - expected).max() <= 2.0**-24 * abs(expected).max()


def test_int8_without_a_scale_is_integers(file):
    tensor = open_weights(file({"a.weight": I8}))["a.weight"]
    assert tensor.scaling is None and tensor.values().dtype == np.int8


def test_expanded_into_a_file(file, tmp_path):
    arrays = {"a.weight": I8, "a.weight_scale": ROWS, "a.comfy_quant": text(CONVROT)}
    path = file({**arrays, "b.weight": F8, "b.weight_scale": np.float32(2), "ids": np.arange(3, dtype=np.int8)})
    before = open_weights(path)
    Expansion(path).write(tmp_path / "out.safetensors")
    after = open_weights(tmp_path / "out.safetensors")
    assert {name: after[name].type for name in after} == {"a.weight": "f32", "b.weight": "f32", "ids": "i8"}
    for name in after:
        assert after[name].values().tobytes() == before[name].values().tobytes()


def test_what_is_not_finite_is_counted(file):
    bad = F8.copy()
    bad[1, 2] = np.nan
    weights = open_weights(file({"a.weight": bad, "b.weight": I8, "b.weight_scale": np.float32(np.inf)}))
    assert not_finite(weights["a.weight"]) == 1
    assert not_finite(weights["b.weight"]) == I8.size


REFUSED = {
    "a scale that the marker promises": (
        {"scaled_fp8": np.zeros(0, np.float32), "a.weight": F8},
        'tensor "a.weight": f8_e4m3 without its scale',
    ),
    "a scale that the format promises": (
        {"a.weight": I8, "a.comfy_quant": text(CONVROT)},
        'i8 without its scale: "a.weight_scale" is missing',
    ),
    "two scales": ({"a.weight": F8, "a.weight_scale": ROWS[0], "a.scale_weight": ROWS[0]}, "two scales"),
    "scales of no lines": ({"a.weight": F8, "a.weight_scale": ROWS[:2]}, "f32, one number, expected"),
    "a scale of other rows": ({"a.weight": I8, "a.weight_scale": ROWS[:2]}, "one number, or [3, 1], expected"),
    "an empty matrix": ({"a.weight": I8[:0], "a.weight_scale": ROWS[0]}, "shape [0, 32] has a scale"),
    "one number": ({"a.weight": I8[0, 0], "a.weight_scale": ROWS[0]}, "shape [] has a scale"),
    "a scale of integers": ({"a.weight": I8, "a.weight_scale": np.int32([1])}, "is i32 [1]; f32"),
    "the format of another type": (
        {"a.weight": I8, "a.weight_scale": ROWS, "a.comfy_quant": text({"format": "float8_e4m3fn"})},
        'i8 in the format "float8_e4m3fn"',
    ),
    "no format": ({"a.weight": I8, "a.weight_scale": ROWS, "a.comfy_quant": text({})}, 'in the format "None"'),
    "a group that is no power of 4": (
        {"a.weight": I8, "a.weight_scale": ROWS, "a.comfy_quant": text({**CONVROT, "convrot_groupsize": 8})},
        "ConvRot in groups of 8",
    ),
    "a group that does not divide": (
        {"a.weight": I8, "a.weight_scale": ROWS, "a.comfy_quant": text({**CONVROT, "convrot_groupsize": 64})},
        "ConvRot in groups of 64",
    ),
    "a group that is text": (
        {"a.weight": I8, "a.weight_scale": ROWS, "a.comfy_quant": text({**CONVROT, "convrot_groupsize": "16"})},
        "ConvRot in groups of 16",
    ),
    "no JSON": (
        {"a.weight": I8, "a.weight_scale": ROWS, "a.comfy_quant": np.zeros(3, np.uint8)},
        "its comfy_quant is not a JSON object",
    ),
    "endless JSON": (
        {"a.weight": I8, "a.weight_scale": ROWS, "a.comfy_quant": np.zeros(5000, np.uint8)},
        "a short JSON text expected",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(file, case):
    arrays, message = REFUSED[case]
    with pytest.raises(BadInput) as error:
        open_weights(file(arrays))
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("metadata", ["{", "[]", '{"layers": []}', '{"layers": {"a": 1}}'])
def test_metadata_that_is_no_table(file, metadata):
    with pytest.raises(BadInput, match="_quantization_metadata"):
        open_weights(file({"a.weight": F8}, {"_quantization_metadata": metadata}))


# A matrix of 160 x 96: the tensors that make it, and its storage in words.
CODES = RNG.integers(-127, 128, (160, 96), np.int8)
FLOATS = CODES.astype(ml_dtypes.float8_e4m3fn)


def scales(*shape):
    return np.ones(shape, np.float32)


RECOGNISED = {
    "zero points of other groups": (
        {"a.weight": CODES, "a.weight_scale": scales(160, 3), "a.weight_zero_point": np.zeros((160, 2), np.int8)},
        "in i8 with zero points",
    ),
    "rotated, with scales of blocks": (
        {
            "a.weight": CODES[:, :64],
            "a.weight_scale": scales(160, 2),
            "a.comfy_quant": text(CONVROT),
        },
        "in i8 with rotated rows, a scale for each block of 1 x 32",
    ),
    "a format that refsd does not know": (
        {"a.weight": CODES, "a.weight_scale": scales(2, 1), "a.comfy_quant": text({"format": "int6_blockwise"})},
        "in the format int6_blockwise",
    ),
    "one with parts of its own": (
        {
            "a.weight": CODES.view(np.uint8)[:, :48],
            "a.proj_down": scales(3),
            "a.comfy_quant": text({"format": "svdquant_w4a4"}),
        },
        "in the format svdquant_w4a4",
    ),
}


@pytest.mark.parametrize("case", RECOGNISED)
def test_recognised_but_not_expanded(file, case):
    arrays, storage = RECOGNISED[case]
    weights = open_weights(file({**arrays, "a.bias": scales(160), "b.weight": F8}))
    assert set(weights) == {"a.weight", "a.bias", "b.weight"}
    assert weights.headers["a.weight"].shape[0] == 160
    assert weights.unexpanded == {"a.weight": storage}
    assert not weights.is_readable("a.weight") and weights.is_readable("b.weight")
    with pytest.raises(BadInput, match=f'tensor "a.weight": it is {storage}, which refsd cannot expand'):
        weights["a.weight"]


def test_one_scale_under_the_name_of_text_encoders(file):
    weights = open_weights(file({"a.weight": F8, "a.weight_scale_inv": np.float32([0.3])}))
    assert (weights["a.weight"].values() == F8.astype(np.float32) * np.float32(0.3)).all()


def _random(*shape):
    return RNG.uniform(0.5, 2, shape).astype(np.float32)


# Codes, their scale, its name, comfy_quant -> rows and columns under one scale.
EXPANDED = {
    "rows of an 8-bit float": (FLOATS, _random(160, 1), "weight_scale", None, (1, 96)),
    "a vector of rows": (FLOATS, _random(160), "weight_scale", "float8_e4m3fn_rowwise", (1, 96)),
    "columns": (FLOATS, _random(1, 96), "weight_scale", None, (160, 1)),
    "blocks, as in official text encoders": (FLOATS, _random(2, 1), "weight_scale_inv", None, (128, 128)),
    "smaller blocks": (FLOATS, _random(3, 2), "weight_scale", "float8_e4m3fn_blockwise", (64, 64)),
    "another 8-bit float": (
        FLOATS.astype(ml_dtypes.float8_e5m2),
        _random(2, 1),
        "weight_scale_inv",
        None,
        (128, 128),
    ),
    "blocks of int8": (CODES, _random(2, 1), "weight_scale", "int8_blockwise", (128, 128)),
    "groups of a row": (CODES, _random(160, 3), "weight_scale", None, (1, 32)),
    "groups of a row, of three axes": (CODES, _random(160, 3, 1), "weight_scale", None, (1, 32)),
    "scales in bfloat16": (CODES, _random(2, 1).astype(ml_dtypes.bfloat16), "weight_scale", None, (128, 128)),
}


@pytest.mark.parametrize("case", EXPANDED)
def test_scales_of_rows_and_blocks(file, case):
    codes, scale, name, form, (down, across) = EXPANDED[case]
    helpers = {f"a.{name}": scale} | ({"a.comfy_quant": text({"format": form})} if form else {})
    weights = open_weights(file({"a.weight": codes, **helpers, "a.input_scale": scales(1)}))
    assert set(weights) == {"a.weight"} and not weights.unexpanded
    each = np.float32(scale).reshape(-(-160 // down), -(-96 // across))
    expected = np.empty((160, 96), np.float32)
    for row in range(160):
        for column in range(96):
            expected[row, column] = np.float32(codes[row, column]) * each[row // down, column // across]
    tensor = weights["a.weight"]
    assert tensor.values().dtype == np.float32 and (tensor.values() == expected).all()
    for index in (slice(100, 140), np.array([3, 150, 127, 128])):
        assert (tensor.rows(index).values() == expected[index]).all()
    parts = np.concatenate([part.values().reshape(-1) for part in pieces(tensor)])
    assert (parts == expected.reshape(-1)).all()


def test_a_block_that_is_not_finite_is_counted(file):
    scale = np.float32([[1], [np.inf]])
    tensor = open_weights(file({"a.weight": FLOATS, "a.weight_scale_inv": scale}))["a.weight"]
    assert not_finite(tensor) == 32 * 96


@pytest.mark.parametrize("shape", [(0, 96), (160, 0)])
def test_a_matrix_of_nothing_has_no_scales(tmp_path, shape):
    tensors = {"a.weight": stored(np.zeros(shape, np.int8)), "a.weight_scale": stored(scales(160, 3))}
    specs = {name: Spec(t.type, t.shape) for name, t in tensors.items()}
    write_safetensors(tmp_path / "a.safetensors", specs, tensors.values())
    with pytest.raises(BadInput, match=r'"a.weight": shape .* has a scale; a matrix expected'):
        open_weights(tmp_path / "a.safetensors")
