"""Matrices of GPTQ, AWQ, Nunchaku, compressed-tensors and quanto: identified with their shape, not expanded."""

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

from refsd.cli import app
from refsd.files.formats import open_weights
from refsd.files.writers import Spec, write_safetensors
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored
from refsd.weights.checkpoint import open_checkpoint

O, I, GROUP = 48, 64, 32


def _zeros(kind, *shape):
    return np.zeros(shape, kind)


def gptq(rows, columns, bits=4):
    groups = columns // GROUP
    return {
        "qweight": _zeros(np.int32, columns * bits // 32, rows),
        "qzeros": _zeros(np.int32, groups, rows * bits // 32),
        "scales": _zeros(np.float16, groups, rows),
        "g_idx": _zeros(np.int32, columns),
    }


def awq(rows, columns):
    groups = columns // GROUP
    return {
        "qweight": _zeros(np.int32, columns, rows // 8),
        "qzeros": _zeros(np.int32, groups, rows // 8),
        "scales": _zeros(np.float16, groups, rows),
    }


def nunchaku(rows, columns):
    low = {"proj_down": _zeros(np.float16, columns, 16), "proj_up": _zeros(np.float16, rows, 16)}
    scales = {"wscales": _zeros(np.float16, columns // 64, rows), "smooth_factor": _zeros(np.float16, columns)}
    return {"qweight": _zeros(np.int8, rows, columns // 2), **scales, **low}


def compressed(rows, columns, bits=4):
    return {
        "weight_packed": _zeros(np.int32, rows, columns * bits // 32),
        "weight_scale": _zeros(np.float16, rows, columns // GROUP),
        "weight_shape": np.array([rows, columns], np.int64),
    }


def compressed_nvfp4(rows, columns):
    return {
        "weight_packed": _zeros(np.uint8, rows, columns // 2),
        "weight_scale": _zeros(np.float16, rows, columns // 16),
        "weight_global_scale": _zeros(np.float32, 1),
    }


def quanto(rows, columns):
    return {
        "weight._data": _zeros(np.int8, rows, columns),
        "weight._scale": _zeros(np.float32, rows, 1),
        "input_scale": _zeros(np.float32, 1),
        "output_scale": _zeros(np.float32, 1),
    }


def modelopt(rows, columns):
    return {
        "weight": _zeros(np.uint8, rows, columns // 2),
        "weight_scale": _zeros(ml_dtypes.float8_e4m3fn, rows, columns // 16),
        "weight_scale_2": _zeros(np.float32, 1),
        "input_scale": _zeros(np.float32, 1),
    }


FORMATS = {
    "ModelOpt": (modelopt, "in NVFP4 without a comfy_quant, as ModelOpt's"),
    "GPTQ": (gptq, "in GPTQ's 4 bits"),
    "GPTQ of 8 bits": (lambda rows, columns: gptq(rows, columns, 8), "in GPTQ's 8 bits"),
    "AWQ": (awq, "in AWQ's 4 bits"),
    "Nunchaku": (nunchaku, "in Nunchaku's SVDQuant"),
    "compressed-tensors": (compressed, "in compressed-tensors' 4-bit integers"),
    "compressed-tensors of 8 bits": (
        lambda rows, columns: compressed(rows, columns, 8),
        "in compressed-tensors' 8-bit integers",
    ),
    "compressed-tensors' NVFP4": (compressed_nvfp4, "in compressed-tensors' 4-bit floats"),
    "quanto": (quanto, "in optimum-quanto's weights"),
}


def _write(path, arrays):
    tensors = {name: stored(array) for name, array in arrays.items()}
    write_safetensors(path, {name: Spec(t.type, t.shape) for name, t in tensors.items()}, tensors.values())
    return path


@pytest.mark.parametrize("case", FORMATS)
def test_a_layer_is_recognised(case, tmp_path):
    pack, storage = FORMATS[case]
    arrays = {f"a.b.{part}": array for part, array in pack(O, I).items()} | {"a.b.bias": _zeros(np.float32, O)}
    weights = open_weights(_write(tmp_path / "a.safetensors", arrays))
    assert set(weights) == {"a.b.weight", "a.b.bias"}
    assert weights.headers["a.b.weight"].shape == (O, I)
    assert weights.unexpanded == {"a.b.weight": storage}
    assert weights["a.b.bias"].shape == (O,)
    with pytest.raises(BadInput, match=f'"a.b.weight": it is {storage}, which refsd cannot expand'):
        weights["a.b.weight"]


OTHERS = {
    "no scales": {"qweight": _zeros(np.int32, 8, O)},
    "scales of another width": awq(O, I) | {"scales": _zeros(np.float16, 2, O + 8)},
    "bits that no tool packs": gptq(O, I) | {"g_idx": _zeros(np.int32, 5)},
    "a vector": {"qweight": _zeros(np.int32, 8), "scales": _zeros(np.float16, 2, O)},
    "a shape that does not fit": compressed(O, I) | {"weight_shape": np.array([O + 1, I], np.int64)},
    "a shape of nothing": compressed(O, I) | {"weight_shape": np.array([O, 0], np.int64)},
    "scales of another size": modelopt(O, I) | {"weight_scale": _zeros(ml_dtypes.float8_e4m3fn, 128, 4)},
    "no scale": {"weight_packed": _zeros(np.uint8, O, I // 2)},
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_no_such_format_keeps_its_names(case, tmp_path):
    arrays = {f"a.{part}": array for part, array in OTHERS[case].items()}
    weights = open_weights(_write(tmp_path / "a.safetensors", arrays))
    assert set(weights) == set(arrays) and not weights.unexpanded


@pytest.mark.parametrize("case", FORMATS)
def test_a_whole_model_is_identified(case, tmp_path):
    """Family, component and storage of a model are told, though none of its matrices can be expanded."""
    runner, base = CliRunner(), tmp_path / "base.safetensors"
    made = runner.invoke(app, ["weights", "make", "flux2-klein", "--tiny", "--type", "f32", "-o", str(base)])
    assert made.exit_code == 0, made.output
    pack, storage = FORMATS[case]
    arrays = {}
    for name, tensor in open_weights(base).items():
        matrix = (
            name.endswith(".weight") and len(tensor.shape) == 2 and min(tensor.shape) >= 128 and "block" in name
        )
        layer = name.removesuffix("weight")
        parts = pack(*tensor.shape) if matrix else {"": tensor.values()}
        arrays |= {(layer + part if part else name): array for part, array in parts.items()}
    packed = _write(tmp_path / "packed.safetensors", arrays)
    with pytest.raises(BadInput, match=f"12 tensors {storage}, which refsd cannot expand"):
        open_checkpoint(packed)
    told = runner.invoke(app, ["info", str(packed)])
    assert told.exit_code == 0, told.output
    assert "FLUX.2 klein" in told.output and "4.75M" in told.output and storage in told.output
