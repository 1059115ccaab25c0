"""Packed matrices: those of five tools are expanded as the tool does it, others are identified."""

from pathlib import Path

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
RUNNER = CliRunner()
RECORDED = Path(__file__).parents[2] / "fixtures/packed.npz"
CASES = sorted({key.split("/")[0] for key in np.load(RECORDED)})
_BITS = {"bf16": ml_dtypes.bfloat16, "f8_e4m3": ml_dtypes.float8_e4m3fn}


def _zeros(kind, *shape):
    return np.zeros(shape, kind)


def _words(numbers, bits=4):
    """Pack each row of numbers densely. uint8 [R, C] -> int32 [R, C bits / 32]"""
    each = np.unpackbits(numbers[..., None], axis=-1, count=bits, bitorder="little").reshape(len(numbers), -1)
    return np.packbits(each, axis=-1, bitorder="little").view(np.int32)


def _quantized(w, bits):
    """Codes around 2^(bits - 1) and the scale of each group of a row."""
    middle = 2 ** (bits - 1)
    groups = w.reshape(len(w), -1, GROUP)
    scale = (np.abs(groups).max(axis=-1) / (middle - 1)).astype(np.float16)
    q = np.rint(groups / np.maximum(scale, np.float16(1e-7)).astype(np.float32)[..., None]) + middle
    return np.clip(q, 0, 2 * middle - 1).astype(np.uint8).reshape(w.shape), scale


def gptq(w, bits=4):
    q, scale = _quantized(w, bits)
    zeros = np.full((scale.shape[1], len(w)), 2 ** (bits - 1) - 1, np.uint8)
    order = np.arange(w.shape[1], dtype=np.int32) // GROUP
    return {"qweight": _words(q, bits).T, "qzeros": _words(zeros, bits), "scales": scale.T, "g_idx": order}


def awq(w):
    q, scale = _quantized(w, 4)
    columns = lambda x: _words(x.reshape(len(x), -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].reshape(x.shape))
    return {"qweight": columns(q.T), "qzeros": columns(np.full_like(q, 8, shape=scale.T.shape)), "scales": scale.T}


def nunchaku(w):
    (rows, columns) = w.shape
    low = {"proj_down": _zeros(np.float16, columns, 16), "proj_up": _zeros(np.float16, rows, 16)}
    scales = {"wscales": _zeros(np.float16, columns // 64, rows), "smooth_factor": _zeros(np.float16, columns)}
    return {"qweight": _zeros(np.int8, rows, columns // 2), **scales, **low}


def compressed(w, bits=4):
    q, scale = _quantized(w, bits)
    return {"weight_packed": _words(q, bits), "weight_scale": scale, "weight_shape": np.array(w.shape, np.int64)}


def quanto(w):
    scale = np.abs(w).max(axis=1, keepdims=True) / 127
    return {
        "weight._data": np.rint(w / scale).astype(np.int8),
        "weight._scale": scale,
        "input_scale": _zeros(np.float32, 1),
        "output_scale": _zeros(np.float32, 1),
    }


def quanto_of_4_bits(w):
    rows = w.size // GROUP
    scales = {"weight._scale": _zeros(np.float16, rows, 1), "weight._shift": _zeros(np.float16, rows, 1)}
    return {"weight._data": _zeros(np.uint8, rows // 2, GROUP), **scales}


EXPANDED = {
    "GPTQ": gptq,
    "GPTQ of 8 bits": lambda w: gptq(w, 8),
    "AWQ": awq,
    "compressed-tensors": compressed,
    "compressed-tensors of 8 bits": lambda w: compressed(w, 8),
    "quanto": quanto,
}
NOT_EXPANDED = {
    "Nunchaku": (nunchaku, "in Nunchaku's SVDQuant"),
    "quanto of 4 bits": (quanto_of_4_bits, "in optimum-quanto's weights"),
    "AWQ whose zero points are none of its groups": (
        lambda w: awq(w) | {"qzeros": _zeros(np.int32, 7, 6)},
        "in AWQ's 4 bits",
    ),
    "compressed-tensors' floats without a global scale": (
        lambda w: {"weight_packed": _zeros(np.uint8, O, I // 2), "weight_scale": _zeros(np.float16, O, 4)},
        "in compressed-tensors' 4-bit floats",
    ),
}


def _write(path, arrays):
    tensors = {name: stored(array) for name, array in arrays.items()}
    write_safetensors(path, {name: Spec(t.type, t.shape) for name, t in tensors.items()}, tensors.values())
    return path


def recorded(case):
    """The parts of a layer as the tool wrote them, and the values that it reads."""
    found = np.load(RECORDED)
    arrays = {key.partition("/")[2]: found[key] for key in found if key.startswith(f"{case}/")}
    for part, array in arrays.items():
        if array.dtype.names:
            (kind,) = array.dtype.names
            arrays[part] = array[kind].view(_BITS[kind])
    return arrays, arrays.pop("want")


@pytest.mark.parametrize("case", CASES)
def test_a_matrix_has_its_tool_s_values(case, tmp_path):
    arrays, want = recorded(case)
    path = _write(tmp_path / "a.safetensors", {f"a.b.{part}": array for part, array in arrays.items()})
    weights = open_weights(path)
    assert set(weights) == {"a.b.weight"} and not weights.unexpanded
    found = weights["a.b.weight"]
    assert found.shape == want.shape == weights.headers["a.b.weight"].shape
    assert np.array_equal(found.values().astype(want.dtype), want)
    rows = found.rows(np.array([3, 30]))
    assert np.array_equal(rows.values().astype(want.dtype), want[[3, 30]])


@pytest.mark.parametrize("case", NOT_EXPANDED)
def test_a_layer_is_recognised(case, tmp_path):
    pack, storage = NOT_EXPANDED[case]
    arrays = {f"a.b.{part}": array for part, array in pack(_weights()).items()} | {
        "a.b.bias": _zeros(np.float32, O)
    }
    weights = open_weights(_write(tmp_path / "a.safetensors", arrays))
    assert set(weights) == {"a.b.weight", "a.b.bias"}
    assert weights.headers["a.b.weight"].shape == (O, I) or case == "quanto of 4 bits"
    assert weights.unexpanded == {"a.b.weight": storage}
    assert weights["a.b.bias"].shape == (O,)
    with pytest.raises(BadInput, match=f'"a.b.weight": it is {storage}, which refsd cannot expand'):
        weights["a.b.weight"]


@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_group_that_is_none(wrong, tmp_path):
    arrays = gptq(_weights())
    arrays["g_idx"][5] = wrong
    weights = open_weights(_write(tmp_path / "a.safetensors", {f"a.{part}": x for part, x in arrays.items()}))
    with pytest.raises(BadInput, match=r'a.safetensors: layer "a": its g_idx has -?\d to \d; 0 to 1 expected'):
        weights["a.weight"]


def _weights():
    return np.random.default_rng(1).standard_normal((O, I)).astype(np.float32)


OTHERS = {
    "no scales": {"qweight": _zeros(np.int32, 8, O)},
    "scales of another width": awq(_weights()) | {"scales": _zeros(np.float16, 2, O + 8)},
    "bits that no tool packs": gptq(_weights()) | {"g_idx": _zeros(np.int32, 5)},
    "a vector": {"qweight": _zeros(np.int32, 8), "scales": _zeros(np.float16, 2, O)},
    "a shape that does not fit": compressed(_weights()) | {"weight_shape": np.array([O + 1, I], np.int64)},
    "a shape of nothing": compressed(_weights()) | {"weight_shape": np.array([O, 0], np.int64)},
    "scales of another size": {
        "weight": _zeros(np.uint8, O, I // 2),
        "weight_scale": _zeros(ml_dtypes.float8_e4m3fn, 128, 4),
        "weight_scale_2": _zeros(np.float32, 1),
    },
    "no scale": {"weight_packed": _zeros(np.uint8, O, I // 2)},
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_is_no_such_format_keeps_its_names(case, tmp_path):
    arrays = {f"a.{part}": array for part, array in OTHERS[case].items()}
    weights = open_weights(_write(tmp_path / "a.safetensors", arrays))
    assert set(weights) == set(arrays) and not weights.unexpanded


def _packed_model(tmp_path, pack):
    """A tiny model, and the same with its large matrices packed."""
    base = tmp_path / "base.safetensors"
    made = RUNNER.invoke(app, ["weights", "make", "flux2-klein", "--tiny", "--type", "f32", "-o", str(base)])
    assert made.exit_code == 0, made.output
    arrays = {}
    for name, tensor in open_weights(base).items():
        matrix = len(tensor.shape) == 2 and min(tensor.shape) >= 128 and "block" in name
        parts = pack(tensor.values()) if matrix and name.endswith(".weight") else {"": tensor.values()}
        layer = name.removesuffix("weight")
        arrays |= {(layer + part if part else name): array for part, array in parts.items()}
    return base, _write(tmp_path / "packed.safetensors", arrays)


@pytest.mark.parametrize("case", EXPANDED)
def test_a_whole_model_is_opened(case, tmp_path):
    base, packed = _packed_model(tmp_path, EXPANDED[case])
    assert open_checkpoint(packed).family.name == "flux2-klein"
    told = RUNNER.invoke(app, ["info", "--values", str(packed)])
    assert told.exit_code == 0 and "nothing wrong in all" in told.output, told.output
    differs = RUNNER.invoke(app, ["diff", str(base), str(packed)])
    assert differs.exit_code == 0 and "12 requantised f32 -> " in differs.output, differs.output


def test_scales_that_are_half_as_large_again_are_told(tmp_path):
    def wrong(w):
        parts = gptq(w)
        return parts | {"scales": (parts["scales"] * 1.5).astype(np.float16)}

    base, packed = _packed_model(tmp_path, wrong)
    differs = RUNNER.invoke(app, ["diff", str(base), str(packed)])
    assert differs.exit_code == 1 and differs.output.count("by 1.") == 12, differs.output


def test_a_whole_model_is_identified(tmp_path):
    """Family, component and storage of a model are told, though none of its matrices can be expanded."""
    _, packed = _packed_model(tmp_path, nunchaku)
    storage = "in Nunchaku's SVDQuant"
    with pytest.raises(BadInput, match=f"12 tensors {storage}, which refsd cannot expand"):
        open_checkpoint(packed)
    told = RUNNER.invoke(app, ["info", str(packed)])
    assert told.exit_code == 0, told.output
    assert "FLUX.2 klein" in told.output and "4.75M" in told.output and storage in told.output
