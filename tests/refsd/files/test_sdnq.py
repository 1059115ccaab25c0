"""SDNQ's weights: expanded as the tool does it, if the config.json beside the file says how; else identified."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

from refsd.cli import app
from refsd.files.formats import open_weights
from refsd.files.sdnq_codes import code_type, unpacked
from refsd.files.writers import Spec, write_safetensors
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored

RECORDED = np.load(Path(__file__).parents[2] / "fixtures/sdnq.npz")
CASES = sorted({key.split("/")[0] for key in RECORDED} - {"codes", "floats"})
BITS = sorted({int(key.split("/")[1]) for key in RECORDED if key.startswith("codes/")})
_DTYPES = {"f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2}
O, I = 32, 48
SUMS = ("svd", "hadamard", "rotated")  # cases in which the tool adds products, in float32
KINDS = {"int8": "i8", "int8-transposed": "i8", "int4": "i8", "int16": "i16", "int12": "i16", "f8": "f8_e4m3"}


def recorded(case):
    """The tensors of a layer as the tool wrote them, its config.json, and the weight that it computes."""
    arrays = {key.partition("/")[2]: RECORDED[key] for key in RECORDED if key.startswith(f"{case}/")}
    for part, array in arrays.items():
        if array.dtype.names:
            (kind,) = array.dtype.names
            arrays[part] = array[kind].view(_DTYPES[kind])
    config = json.loads(arrays.pop("config").tobytes())
    return arrays, config, arrays.pop("want")


def write(folder, arrays, config=None, prefix="a.b."):
    tensors = {f"{prefix}{part}": stored(array) for part, array in arrays.items()}
    specs = {name: Spec(t.type, t.shape) for name, t in tensors.items()}
    write_safetensors(folder / "a.safetensors", specs, tensors.values())
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder / "a.safetensors"


@pytest.mark.parametrize("case", CASES)
def test_a_layer_has_the_tool_s_values(case, tmp_path):
    arrays, config, want = recorded(case)
    weights = open_weights(write(tmp_path, arrays, config))
    assert set(weights) == {"a.b.weight"} and not weights.unexpanded
    tensor = weights["a.b.weight"]
    assert tensor.shape == want.shape == weights.headers["a.b.weight"].shape
    assert tensor.type == weights.headers["a.b.weight"].type
    assert case not in KINDS or tensor.type == KINDS[case]
    if any(word in case for word in SUMS):
        assert np.linalg.norm(tensor.values() - want) <= 1e-6 * np.linalg.norm(want)
    else:
        assert tensor.values().tobytes() == want.tobytes()
    rows = np.array([3, 30])
    if len(want.shape) == 2:
        assert np.array_equal(tensor.rows(rows).values(), tensor.values()[rows])
    if tensor.type == "f32":  # whose codes `refsd diff` counts as what they cost
        assert tensor.coded is not None and 1 <= tensor.coded[0] <= 16


@pytest.mark.parametrize("bits", BITS)
def test_codes(bits):
    packed, want = (RECORDED[f"codes/{bits}/{part}"] for part in ("packed", "want"))
    assert unpacked(packed.reshape(-1), bits).tolist() == want.tolist()
    kind = code_type(f"int{bits}")
    if bits > 1:
        assert kind is not None and kind.packed
        assert kind.numbers(packed.reshape(-1)).tolist() == (want.astype(int) - 2 ** (bits - 1)).tolist()


def test_floats():
    kinds, codes, want = (RECORDED[f"floats/{part}"] for part in ("kinds", "codes", "want"))
    for kind, some, values in zip(kinds.tolist(), codes, want, strict=True):
        found = code_type(kind)
        assert found is not None and found.values is not None, kind
        assert found.values[some].tobytes() == values.tobytes(), kind


@pytest.mark.parametrize(
    "kind", ["int0", "uint17", "int99", "float6_e3m3fn", "float3_e5m0fn", "fp99", "nf4", "", None, 8]
)
def test_types_that_are_none(kind):
    assert code_type(kind) is None


NOT_EXPANDED = {
    "no config.json": (
        {},
        None,
        "in u8 with a scale, as SDNQ's, without the config.json that says more",
    ),
    "the config.json of another tool": (
        {},
        {"quantization_config": {"quant_method": "torchao"}},
        "in u8 with a scale, as SDNQ's, without the config.json that says more",
    ),
    "a type that is none": ({}, {"weights_dtype": "int99"}, "in SDNQ's int99 stored as u8"),
    "a type that is no text": ({}, {"weights_dtype": ["int4"]}, "in SDNQ's ['int4'] stored as u8"),
    "codes of another type": ({}, {"weights_dtype": "int8"}, "in SDNQ's int8 stored as u8"),
    "no zero points": ({"zero_point": None}, {}, "in SDNQ's uint4 without zero_point"),
    "zero points of other groups": (
        {"zero_point": np.zeros((O, 6, 1), np.float32)},
        {},
        "in SDNQ's uint4 whose zero_point has another shape than its scale",
    ),
    "scales of other rows": (
        {part: np.zeros((O - 1, 3, 1), np.float32) for part in ("scale", "zero_point")},
        {},
        "in SDNQ's uint4 of shape [768] with a scale of [31, 3, 1]",
    ),
    "no scales": (
        {part: np.zeros((0, 3, 1), np.float32) for part in ("scale", "zero_point")},
        {},
        "in SDNQ's uint4 of shape [768] with a scale of [0, 3, 1]",
    ),
    "no codes": ({"weight": np.zeros(0, np.uint8)}, {}, "in SDNQ's uint4 of shape [0] with a scale of [32, 3, 1]"),
    "scales that are whole numbers": (
        {"scale": np.zeros((O, 3, 1), np.int32)},
        {},
        "in SDNQ's uint4 whose scale is i32",
    ),
    "packed, one scale": (
        {part: np.zeros((1, 1), np.float32) for part in ("scale", "zero_point")},
        {},
        "in SDNQ's uint4 packed, in a shape that is not in the file",
    ),
    "packed scales": (
        {"scale": np.zeros(48, np.uint8), "scale_2": np.zeros(1, np.float32)},
        {"scale_dtype": "uint4"},
        "in SDNQ's uint4 whose scale is packed, in a shape that is not in the file",
    ),
    "half a low-rank branch": (
        {"svd_up": np.zeros((O, 4), np.float32)},
        {},
        "in SDNQ's uint4 without svd_down",
    ),
    "a low-rank branch of other columns": (
        {"svd_up": np.zeros((O, 4), np.float32), "svd_down": np.zeros((4, I + 1), np.float32)},
        {},
        "in SDNQ's uint4 with a low-rank branch of [32, 4] and [4, 49]",
    ),
    "a low-rank branch without axes": (
        {"svd_up": np.zeros((), np.float32), "svd_down": np.zeros((), np.float32)},
        {},
        "in SDNQ's uint4 with a low-rank branch of [] and []",
    ),
    "rotated in groups of nothing": (
        {},
        {"use_hadamard": True, "hadamard_group_size": 0},
        "in SDNQ's uint4 whose hadamard_group_size is 0",
    ),
    "a codebook of other bits": (
        {"scale": np.zeros((O, 3, 8), np.float32)},
        {"use_codebook": True},
        "in SDNQ's uint4 of shape [768] with a scale of [32, 3, 8]",
    ),
}


@pytest.mark.parametrize("case", NOT_EXPANDED)
def test_what_is_not_said_is_named(case, tmp_path):
    changed, settings, storage = NOT_EXPANDED[case]
    arrays, config, _ = recorded("uint4")
    arrays = {part: array for part, array in {**arrays, **changed}.items() if array is not None}
    if settings is None or "quantization_config" in settings:
        config = settings
    else:
        config["quantization_config"] |= settings
    weights = open_weights(write(tmp_path, arrays, config))
    assert set(weights) == {"a.b.weight"} and weights.unexpanded == {"a.b.weight": storage}
    with pytest.raises(BadInput, match=r'tensor "a.b.weight": it is in .*, which refsd cannot expand'):
        weights["a.b.weight"]


def test_a_scale_in_another_shard(tmp_path):
    arrays, config, _ = recorded("int8")
    other = {"c.weight": arrays["weight"], **{f"a.{part}": array for part, array in arrays.items()}}
    weights = open_weights(write(tmp_path, other, config, prefix=""))
    assert weights.unexpanded == {"c.weight": "in SDNQ's int8 without scale"} and set(weights.expanded) == {
        "a.weight"
    }


def test_one_scale_that_may_be_of_either_order(tmp_path):
    arrays, config, _ = recorded("int8-one-scale")
    config["quantization_config"]["use_quantized_matmul"] = True
    (storage,) = open_weights(write(tmp_path, arrays, config)).unexpanded.values()
    assert storage == "in SDNQ's int8 with one scale, which do not say whether they are transposed"


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": ' * 9])
def test_a_malformed_config(text, tmp_path):
    path = write(tmp_path, recorded("uint4")[0])
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(BadInput, match=r"config.json: .*JSON"):
        open_weights(path)


ELSEWHERE = {
    "minimum_6bit": ({"minimum_6bit": ["a.*.weight"]}, "int6"),
    "at least 3": ({"minimum_3bits": ["a"]}, "uint3"),
    "at least uint7": ({"minimum_uint7_bit": ["b"]}, "uint7"),
    "the first that fits": ({"int4": ["c"], "int5": [".a.b"], "int6": ["a"]}, "int5"),
    "none": ({"int4": ["c", 7, ".b", "b.*", "*c"], "2bit": ["a"], "x": None}, "int2"),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_types_of_modules(case, tmp_path):
    """Which type a layer has: as sdnq.utils.get_minimum_dtype finds it."""
    modules, kind = ELSEWHERE[case]
    arrays = {"weight": np.zeros((O, I), np.float16), "scale": np.zeros((O, 1), np.float32)}
    config = {"quant_method": "sdnq", "weights_dtype": "int2", "modules_dtype_dict": modules}
    (storage,) = open_weights(write(tmp_path, arrays, {"quantization_config": config})).unexpanded.values()
    assert storage == f"in SDNQ's {kind} stored as f16"


def test_a_whole_model_is_opened(tmp_path):
    """int4 in groups of 32, whose shapes are not in the file."""
    base = tmp_path / "base.safetensors"
    runner = CliRunner()
    made = runner.invoke(app, ["weights", "make", "flux2-klein", "--tiny", "--type", "f32", "-o", str(base)])
    assert made.exit_code == 0, made.output
    arrays = {}
    for name, tensor in open_weights(base).items():
        w = tensor.values()
        if w.ndim == 2 and "block" in name and name.endswith(".weight") and min(w.shape) >= 128:
            groups = w.reshape(len(w), -1, 32)
            scale = np.abs(groups).max(axis=-1, keepdims=True) / np.float32(7)
            q = (np.clip(np.rint(groups / scale), -8, 7) + 8).astype(np.uint8).reshape(-1, 2)
            arrays |= {name: q[:, 0] | q[:, 1] << 4, f"{name.removesuffix('weight')}scale": scale}
        else:
            arrays[name] = w
    config = {"quantization_config": {"quant_method": "sdnq", "weights_dtype": "int4"}}
    packed = write(tmp_path, arrays, config, prefix="")
    told = runner.invoke(app, ["info", "--values", str(packed)])
    assert told.exit_code == 0 and "nothing wrong in all" in told.output, told.output
    assert "FLUX.2 klein" in told.output and "12 tensors in SDNQ's int4" in told.output, told.output
    differs = runner.invoke(app, ["diff", str(base), str(packed)])
    assert differs.exit_code == 0 and "12 requantised f32 -> SDNQ's int4" in differs.output, differs.output
