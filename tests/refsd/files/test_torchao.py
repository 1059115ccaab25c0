"""torchao's tensors in safetensors: expanded as the tool does it; metadata that do not fit are said."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from refsd.files.formats import open_weights
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES

RECORDED = np.load(Path(__file__).parents[2] / "fixtures/torchao.npz")
CASES = sorted({key.split("/")[0] for key in RECORDED})
KINDS = {"int8": "i8", "int4": "i8", "int4-zeros": "i16", "f8": "f8_e4m3", "mxfp8": "mxfp8", "nvfp4": "nvfp4_comfy"}
_TYPES = {dtype: name for name, dtype in SCALAR_TYPES.items()}
_TYPES |= {np.dtype(ml_dtypes.float8_e8m0fnu): "f8_e8m0"}
_DTYPES = {name: dtype for dtype, name in _TYPES.items()}


def recorded(case):
    """The tensors and the metadata of a file as torchao wrote it, and the weight that it computes."""
    arrays = {key.partition("/")[2]: RECORDED[key] for key in RECORDED if key.startswith(f"{case}/")}
    for name, array in arrays.items():
        if array.dtype.names:
            (kind,) = array.dtype.names
            arrays[name] = array[kind].view(_DTYPES[kind])
    metadata = json.loads(arrays.pop("metadata").tobytes())
    return arrays, metadata, arrays.pop("want")


def write(path, arrays, metadata):
    """Write a file, e8m0 too, which refsd does not write."""
    header, data = {"__metadata__": metadata}, b""
    for name, array in arrays.items():
        kind = {"i8": "I8", "u8": "U8", "f8_e4m3": "F8_E4M3", "f8_e8m0": "F8_E8M0", "f32": "F32", "f16": "F16"}
        raw = array.tobytes()
        entry = {
            "dtype": kind[_TYPES[array.dtype]],
            "shape": array.shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        header[name], data = entry, data + raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("case", CASES)
def test_a_weight_has_the_tool_s_values(case, tmp_path):
    arrays, metadata, want = recorded(case)
    weights = open_weights(write(tmp_path / "a.safetensors", arrays, metadata))
    assert set(weights) == {"0.weight"} and not weights.unexpanded
    (storage,) = weights.expanded.values()
    assert storage.startswith("in torchao's ") and storage.endswith("Tensor")
    tensor = weights["0.weight"]
    assert tensor.shape == want.shape == weights.headers["0.weight"].shape
    assert case not in KINDS or weights.headers["0.weight"].type == KINDS[case]
    assert tensor.values().tobytes() == want.tobytes()
    assert np.array_equal(tensor.rows(np.array([3, 30])).values(), want[[3, 30]])


@pytest.mark.parametrize("case", ["mxfp8", "mxfp4", "nvfp4"])
def test_scales_in_rows(case, tmp_path):
    """Scales that are not in tiles: the same values."""
    arrays, metadata, want = recorded(case)
    tiles = arrays["0._weight_scale"].reshape(-1)
    group = 16 if case == "nvfp4" else 32
    rows, groups = 144, 96 // group
    index = np.arange(len(tiles)).reshape(
        2, -1, 32, 4, 4
    )  # tiles of 128 rows, of 4 groups; row % 32, row // 32, group
    index = index.transpose(0, 3, 2, 1, 4).reshape(256, -1)[:rows, :groups]
    content = json.loads(metadata["0.weight"])
    content["_data"]["is_swizzled_scales"] = False
    metadata["0.weight"] = json.dumps(content)
    weights = open_weights(write(tmp_path / "a.safetensors", arrays | {"0._weight_scale": tiles[index]}, metadata))
    assert weights["0.weight"].values().tobytes() == want.tobytes()


def test_shards(tmp_path):
    """The index has the names of the parts."""
    arrays, metadata, want = recorded("int8")
    write(tmp_path / "1.safetensors", arrays, metadata)
    index = tmp_path / "a.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(arrays, "1.safetensors")}))
    weights = open_weights(index)
    assert set(weights) == {"0.weight"} and weights["0.weight"].values().tobytes() == want.tobytes()


def entry(**changed):
    return json.dumps({"_type": "Int8Tensor", "_data": {}, "_tensor_data_names": ["qdata", "scale"]} | changed)


def test_tensors_without_a_module(tmp_path):
    arrays = {"._weight_qdata": np.ones((2, 4), np.int8), "._weight_scale": np.full((2, 1), 2, np.float32)}
    metadata = {"tensor_names": '["weight"]', "weight": entry()}
    arrays = {name.removeprefix("."): array for name, array in arrays.items()}
    assert (open_weights(write(tmp_path / "a.safetensors", arrays, metadata))["weight"].values() == 2).all()


BROKEN = [
    "",
    "{",
    "[]",
    "1",
    '"Int8Tensor"',
    "{" * 2000,
    entry(_type=7),
    entry(_data=None),
    entry(_tensor_data_names=3),
]
BROKEN += [entry(_tensor_data_names=[["qdata"]]), None]


@pytest.mark.parametrize("text", BROKEN)
def test_malformed_metadata_are_refused(text, tmp_path):
    arrays, metadata, _ = recorded("int8")
    del metadata["0.weight"]
    metadata |= {} if text is None else {"0.weight": text}
    with pytest.raises(BadInput, match=r'a.safetensors: tensor "0.weight": its metadata are .*expected') as error:
        open_weights(write(tmp_path / "a.safetensors", arrays, metadata))
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


@pytest.mark.parametrize("names", ["", "{", "7", "[1]", "null", "[" * 5000])
def test_names_of_no_tensors(names, tmp_path):
    arrays, metadata, _ = recorded("int8")
    weights = open_weights(write(tmp_path / "a.safetensors", arrays, metadata | {"tensor_names": names}))
    assert set(weights) == set(arrays)


FLOATS = np.ones((32, 3), np.float32)
NOT_EXPANDED = {
    "another class": ("int8", {}, {"_type": "Int4TilePackedTo4dTensor"}, "in torchao's Int4TilePackedTo4dTensor"),
    "a class with a long name": ("int8", {}, {"_type": "x\n" * 60}, r"in torchao's x\nx\nx\n"),
    "scales that do not divide": ("int8", {"scale": FLOATS[:31]}, {}, "in torchao's Int8Tensor"),
    "no scales": ("int8", {"scale": FLOATS[:0]}, {}, "in torchao's Int8Tensor"),
    "scales of other groups": ("int4-zeros", {"scale": FLOATS[:, :2]}, {}, "in torchao's IntxUnpackedToInt8Tensor"),
    "scales of bytes": ("f8", {"scale": FLOATS.astype(np.uint8)}, {}, "in torchao's Float8Tensor"),
    "a vector": ("f8", {"qdata": np.zeros(96, ml_dtypes.float8_e4m3fn)}, {}, "in torchao's Float8Tensor"),
    "nothing": ("f8", {"qdata": np.zeros((0, 96), ml_dtypes.float8_e4m3fn)}, {}, "in torchao's Float8Tensor"),
    "fewer tiles": ("mxfp8", {"scale": np.zeros(7, ml_dtypes.float8_e8m0fnu)}, {}, "in torchao's MXTensor"),
    "groups of 64": ("mxfp8", {}, {"_data": {"block_size": 64}}, "in torchao's MXTensor"),
    "two scales of the tensor": ("nvfp4", {"per_tensor_scale": FLOATS}, {}, "in torchao's NVFP4Tensor"),
    "smoothed columns": (
        *("int8", {"act_pre_scale": FLOATS[:1]}),
        *(
            {"_tensor_data_names": ["qdata", "scale", "act_pre_scale"]},
            "in torchao's Int8Tensor with act_pre_scale",
        ),
    ),
}


@pytest.mark.parametrize("case", NOT_EXPANDED)
def test_what_is_not_expanded_is_identified(case, tmp_path):
    of, parts, changed, storage = NOT_EXPANDED[case]
    arrays, metadata, _ = recorded(of)
    arrays |= {f"0._weight_{part}": array for part, array in parts.items()}
    metadata["0.weight"] = json.dumps(json.loads(metadata["0.weight"]) | changed)
    weights = open_weights(write(tmp_path / "a.safetensors", arrays, metadata))
    ((name, found),) = weights.unexpanded.items()
    assert name == "0.weight" and found.startswith(storage) and len(found) < 80
    with pytest.raises(BadInput, match=r'tensor "0.weight": it is in torchao\'s .*, which refsd cannot expand'):
        weights["0.weight"]


def test_int4_has_its_shape(tmp_path):
    """Int4Tensor packs two codes a byte; the metadata have the shape."""
    content = {
        "_type": "Int4Tensor",
        "_data": {"block_size": [1, 32], "shape": [32, 192]},
        "_tensor_data_names": ["qdata"],
    }
    metadata = {"tensor_names": '["0.weight"]', "0.weight": json.dumps(content)}
    weights = open_weights(
        write(tmp_path / "a.safetensors", {"0._weight_qdata": np.zeros((32, 96), np.uint8)}, metadata)
    )
    assert weights.headers["0.weight"].shape == (32, 192)
    assert weights.unexpanded == {"0.weight": "in torchao's Int4Tensor"}
