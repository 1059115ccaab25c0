"""ComfyUI's NVFP4 and MXFP8: expanded as the bits say, or refused by file and tensor."""

import json

import ml_dtypes
import numpy as np
import pytest
from naive.quant import grouped as naive
from naive.quant.scaled import float8

from refsd.diagnosis.requantising import requantised
from refsd.files.formats import open_weights
from refsd.files.writers import Spec, write_safetensors
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored

RNG = np.random.default_rng(0)
ROWS, COLUMNS = 160, 96
NIBBLES = RNG.integers(0, 256, (ROWS, COLUMNS // 2), np.uint8)
BLOCKS = RNG.integers(0x20, 0x60, (ROWS, COLUMNS // 16), np.uint8)
FLOATS = RNG.integers(0, 0x7E, (ROWS, COLUMNS), np.uint8) | RNG.integers(0, 2, (ROWS, COLUMNS), np.uint8) << 7
POWERS = RNG.integers(100, 150, (ROWS, COLUMNS // 32), np.uint8)
E4M3 = ml_dtypes.float8_e4m3fn


def nvfp4(**changed):
    arrays = {
        "weight": NIBBLES,
        "weight_scale": naive.in_tiles(BLOCKS).view(E4M3),
        "weight_scale_2": np.float32(0.0625),
        "comfy_quant": {"format": "nvfp4"},
    }
    return named(arrays | changed)


def mxfp8(**changed):
    scale = naive.in_tiles(POWERS)
    arrays = {"weight": FLOATS.view(E4M3), "weight_scale": scale, "comfy_quant": {"format": "mxfp8"}}
    return named(arrays | changed)


def named(arrays):
    def array(value):
        return np.frombuffer(json.dumps(value).encode(), np.uint8) if isinstance(value, dict) else np.asarray(value)

    return {f"a.{part}": array(value) for part, value in arrays.items() if value is not None}


@pytest.fixture
def opened(tmp_path):
    def write(arrays, metadata=None):
        tensors = {name: stored(array) for name, array in arrays.items()}
        path = tmp_path / "a.safetensors"
        specs = {name: Spec(t.type, t.shape) for name, t in tensors.items()}
        write_safetensors(path, specs, tensors.values(), metadata)
        return open_weights(path)

    return write


@pytest.mark.parametrize("inside", [True, False])
def test_nvfp4(opened, inside):
    layers = {"_quantization_metadata": json.dumps({"layers": {"a": {"format": "nvfp4"}}})}
    file = nvfp4(input_scale=np.float32(2)) if inside else nvfp4(comfy_quant=None)
    weights = opened(file, None if inside else layers)
    assert list(weights) == ["a.weight"]
    tensor = weights["a.weight"]
    assert (tensor.type, tensor.shape) == ("nvfp4_comfy", (ROWS, COLUMNS))
    scale = float8(BLOCKS.ravel(), 4) * 0.0625
    expected = naive.expand(naive.codes(NIBBLES.ravel()), naive.e2m1(np.arange(16)), scale, 16)
    assert (tensor.values().ravel() == expected.astype(np.float32)).all()
    assert (tensor.rows(slice(3, 5)).values() == tensor.values()[3:5]).all()
    bytes_ = nvfp4(weight_scale=naive.in_tiles(BLOCKS).ravel())
    assert (opened(bytes_)["a.weight"].values() == tensor.values()).all(), "scales as flat bytes"


def test_mxfp8(opened):
    tensor = opened(mxfp8())["a.weight"]
    assert (tensor.type, tensor.shape) == ("mxfp8", (ROWS, COLUMNS))
    scale = np.exp2(POWERS.ravel().astype(np.float64) - 127)
    expected = naive.expand(np.arange(FLOATS.size), float8(FLOATS.ravel(), 4), scale, 32)
    assert (tensor.values().ravel() == expected.astype(np.float32)).all()


SMOOTH = RNG.uniform(0.25, 4, COLUMNS).astype(np.float32)


@pytest.mark.parametrize("file", [nvfp4, mxfp8])
@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_columns_that_awq_has_smoothed(opened, file, kind):
    """What AWQ multiplies the input by, a plain layer has in its columns."""
    plain = opened(file())["a.weight"].values()
    weights = opened(file(pre_quant_scale=SMOOTH.astype(kind)))
    tensor = weights["a.weight"]
    assert list(weights) == ["a.weight"] and not weights.unexpanded
    expected = plain * SMOOTH.astype(kind).astype(np.float32)
    assert (tensor.values() == expected).all() and not (expected == plain).all()
    assert (tensor.rows(slice(3, 7)).values() == expected[3:7]).all()
    assert (tensor.rows(np.array([150, 2])).values() == expected[[150, 2]]).all()
    again = requantised(expected.astype(np.float64), tensor)
    assert np.abs(again - expected).max() <= 1e-6 * np.abs(expected).max()


REFUSED = {
    "smoothed rows": (nvfp4(pre_quant_scale=SMOOTH[:8]), '"a.pre_quant_scale" is f32 [8]; f32 [96] expected'),
    "no scale": (nvfp4(weight_scale=None), 'nvfp4 without its scale: "a.weight_scale" is missing'),
    "no second scale": (nvfp4(weight_scale_2=None), '"a.weight_scale_2" is missing'),
    "a scale too small": (nvfp4(weight_scale=np.zeros((160, 6), E4M3)), "f8_e4m3 [160, 6]; f8_e4m3, 2048 of them"),
    "two second scales": (nvfp4(weight_scale_2=np.ones(2, np.float32)), "f32 [2]; f32, 1 of them"),
    "bytes that are none": (nvfp4(weight=FLOATS.view(E4M3)), "a matrix of u8"),
    "a vector": (nvfp4(weight=NIBBLES[0]), "u8 [48] in the format nvfp4; a matrix of u8"),
    "rows that are no tiles": (nvfp4(weight=NIBBLES[:-1]), "nvfp4 of [159, 96]; multiples of 16"),
    "mxfp8 without a scale": (mxfp8(weight_scale=None), "mxfp8 without its scale"),
    "a scale of floats": (mxfp8(weight_scale=np.ones((256, 4), np.float32)), "f32 [256, 4]; f8_e8m0, 1024"),
    "rows that are half a tile": (mxfp8(weight=FLOATS[:-16].view(E4M3)), "mxfp8 of [144, 96]; multiples of 32"),
    "a format that is no text": (nvfp4(comfy_quant={"format": ["nvfp4"]}), "in the format \"['nvfp4']\""),
}


UNEXPANDED = {
    "4 bits": (nvfp4(comfy_quant={"format": "other_w4a4"}), "other_w4a4"),
    "8 bits": (
        named({"weight": FLOATS.view(np.int8), "comfy_quant": {"format": "int8_of_tomorrow"}}),
        "int8_of_tomorrow",
    ),
}


@pytest.mark.parametrize("case", UNEXPANDED)
def test_recognised_but_not_expanded(opened, case):
    arrays, says = UNEXPANDED[case]
    weights = opened(arrays)
    assert weights.unexpanded == {"a.weight": f"in the format {says}"}
    assert weights.headers["a.weight"].shape == (160, 96)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(opened, case):
    arrays, says = REFUSED[case]
    with pytest.raises(BadInput) as error:
        opened(arrays)
    assert says in str(error.value) and '"a.weight"' in str(error.value) and "\n" not in str(error.value)
