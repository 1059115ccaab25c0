"""fp8 and scaled fp8 under the names of published files: each part has a scale of its own."""

import json

import ml_dtypes
import numpy as np
import pytest
import small_families as small
from naive.quant import grouped as naive

from refsd.files.writers import Spec, write_safetensors
from refsd.numerics.tensor import GROUPED_TYPES, stored
from refsd.weights import open_checkpoint

pytestmark = pytest.mark.jitted

KEPT = [
    ("flux-dev", "original", "model.diffusion_model."),
    ("flux-dev", "diffusers", ""),
    ("chroma", "diffusers", ""),
    ("zimage", "original", ""),
    ("zimage", "diffusers", ""),
    ("flux2-klein", "diffusers", ""),
    ("t5xxl", "transformers", ""),
    ("t5xxl", "transformers", "text_encoders.t5xxl.transformer."),
    ("qwen3", "transformers", ""),
    ("qwen2.5-vl", "transformers", ""),
]
# What the scale is called, what else stands beside it, and whether the file says so by a marker.
STYLES = {"old": ("scale_weight", "scale_input", True), "of today": ("weight_scale", "input_scale", False)}


def scaled(arrays, prefix, scale, given, marker):
    """The file's tensors; and the values that they stand for."""
    rng = np.random.default_rng(5)
    kept, values = {}, {}
    for name, array in arrays.items():
        layer, _, leaf = name.rpartition(".")
        if leaf != "weight" or array.ndim != 2:
            kept[prefix + name] = values[name] = array
            continue
        factor = np.float32(np.abs(array).max() / rng.uniform(100, 440))
        kept[prefix + name] = (array / factor).astype(ml_dtypes.float8_e4m3fn)
        kept[f"{prefix}{layer}.{scale}"] = factor if marker else factor.reshape(1)
        kept[f"{prefix}{layer}.{given}"] = np.float32(2)
        values[name] = kept[prefix + name].astype(np.float32) * factor
    if marker:
        kept[f"{prefix}scaled_fp8"] = np.zeros(2, ml_dtypes.float8_e4m3fn)
    return kept, values


def write(path, arrays):
    tensors = {name: stored(np.asarray(array)) for name, array in arrays.items()}
    write_safetensors(path, {n: Spec(t.type, t.shape) for n, t in tensors.items()}, tensors.values())
    return path


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("family", "layout", "prefix"), KEPT)
def test_the_values_are_the_scaled_ones(tmp_path, family, layout, prefix, style):
    ((component, size),) = small.FAMILIES[family].items()
    ours = small.weights(component, size)
    theirs = small.written(component, layout, size, ours)
    kept, values = scaled(theirs, prefix, *STYLES[style])
    held = open_checkpoint(write(tmp_path / "a.safetensors", kept)).components[component]
    assert not held.unused and not held.extras
    plain = open_checkpoint(write(tmp_path / "b.safetensors", {prefix + n: a for n, a in values.items()}))
    expected = plain.components[component].weights
    assert held.weights.keys() == expected.keys() == ours.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(held.weights[name].values(), tensor.values(), err_msg=name)
        assert np.linalg.norm(tensor.values() - ours[name]) <= 0.05 * np.linalg.norm(ours[name])


@pytest.mark.parametrize(("family", "layout", "prefix"), KEPT)
def test_plain_fp8(tmp_path, family, layout, prefix):
    ((component, size),) = small.FAMILIES[family].items()
    ours = {n: a.astype(ml_dtypes.float8_e5m2) for n, a in small.weights(component, size).items()}
    theirs = small.written(component, layout, size, {n: a.astype(np.float32) for n, a in ours.items()})
    kept = {prefix + n: a.astype(ml_dtypes.float8_e5m2) for n, a in theirs.items()}
    held = open_checkpoint(write(tmp_path / "a.safetensors", kept)).components[component].weights
    for name, array in ours.items():
        np.testing.assert_array_equal(held[name].values(), array.astype(np.float32))


@pytest.mark.parametrize(("family", "layout", "prefix"), KEPT)
def test_nf4(tmp_path, family, layout, prefix):
    """As bitsandbytes saves a whole model: matrices of 64 columns and more, whatever is joined or split of them."""
    rng = np.random.default_rng(6)
    ((component, size),) = small.FAMILIES[family].items()
    ours = small.weights(component, size)
    kept, values = {}, {}
    for name, array in small.written(component, layout, size, ours).items():
        if not name.endswith("weight") or array.ndim != 2 or array.size % 64:
            kept[prefix + name] = values[prefix + name] = array
            continue
        codes = rng.integers(0, 256, (array.size // 2, 1), np.uint8)
        absmax = rng.uniform(0.1, 1, array.size // 64).astype(np.float32)
        state = {"quant_type": "nf4", "blocksize": 64, "shape": list(array.shape), "dtype": "float16"}
        parts = {"": codes, ".absmax": absmax, ".quant_map": GROUPED_TYPES["nf4"]}
        parts[".quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
        kept |= {prefix + name + ending: part for ending, part in parts.items()}
        expanded = naive.expand(naive.codes(codes[:, 0]), GROUPED_TYPES["nf4"], absmax, 64)
        values[prefix + name] = expanded.astype(np.float32).reshape(array.shape)
    held = open_checkpoint(write(tmp_path / "a.safetensors", kept)).components[component]
    assert not held.unused and not held.extras and "nf4" in {h.type for h in held.weights.file.headers.values()}
    plain = open_checkpoint(write(tmp_path / "b.safetensors", values)).components[component].weights
    for name, tensor in plain.items():
        np.testing.assert_array_equal(held.weights[name].values(), tensor.values(), err_msg=name)
