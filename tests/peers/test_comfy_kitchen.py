"""Scaled floats and int8, ConvRot, NVFP4 and MXFP8 against comfy-kitchen's eager kernels, which ComfyUI runs."""

import json

import numpy as np
import pytest
import torch
from comfy_kitchen.backends.eager import quantization as theirs
from comfy_kitchen.tensor import TensorCoreMXFP8Layout, TensorCoreNVFP4Layout
from comfy_kitchen.tensor.int8_utils import _build_hadamard
from naive.quant import scaled as naive
from safetensors.torch import save_file

from refsd.files.formats import open_weights
from refsd.kernels.quant import convrot, f8_e4m3, f8_e5m2, int8_scaled

pytestmark = pytest.mark.peer


@pytest.fixture
def weight():
    return torch.from_numpy(np.random.default_rng(1).standard_normal((64, 1024)).astype(np.float32))


@pytest.mark.parametrize(("module", "dtype"), [(f8_e4m3, torch.float8_e4m3fn), (f8_e5m2, torch.float8_e5m2)])
def test_8_bit_floats(module, dtype):
    codes = np.arange(256, dtype=np.uint8)
    for scale in np.float32([1, 0.0123, 3e-5, 1e30]):
        expected = torch.from_numpy(codes).view(dtype).to(torch.float32) * torch.tensor(scale)
        ours = module.dequantize(codes, scale)
        same = (ours.view(np.uint32) == expected.numpy().view(np.uint32)) | (
            np.isnan(ours) & expected.isnan().numpy()
        )
        assert same.all()


def test_int8_is_the_same_bit_for_bit(weight):
    codes, scale = theirs.quantize_int8_rowwise(weight.clone())
    ours = int8_scaled.quantize(weight.numpy())
    assert (ours[0] == codes.numpy()).all() and (ours[1] == scale.numpy()[:, 0]).all()
    expanded = theirs.dequantize_int8_simple(codes, scale).numpy()
    assert int8_scaled.dequantize(*ours).tobytes() == expanded.tobytes()
    codes, scale = theirs.quantize_int8_tensorwise(weight.clone())
    expanded = theirs.dequantize_int8_simple(codes, scale).numpy()
    assert int8_scaled.dequantize(codes.numpy(), scale.numpy().reshape(1)).tobytes() == expanded.tobytes()


@pytest.mark.parametrize("group", [4, 16, 64, 256])
def test_the_rotation_is_theirs(group):
    assert (naive.hadamard(group).astype(np.float32) == _build_hadamard(group).numpy()).all()


@pytest.mark.parametrize("group", [16, 256])
def test_convrot(weight, group):
    """Their float32 product of 256 terms is the rounder of the two; ours is within one rounding of the truth."""
    codes, scale = theirs.quantize_int8_convrot_weight(weight.clone(), group)
    expected = theirs.dequantize_int8_convrot_weight(codes, scale, group).numpy()
    ours = convrot.dequantize(codes.numpy(), scale.numpy()[:, 0], group)
    assert np.linalg.norm(ours - expected) <= 1e-6 * np.linalg.norm(expected)
    rotated = theirs.rotate_int8_convrot_weight(weight, group).numpy()
    assert abs(convrot.rotate(weight.numpy(), group) - rotated).max() <= 1e-5


@pytest.mark.parametrize("shape", [(16, 16), (144, 80), (256, 320)])
def test_nvfp4_files(tmp_path, shape):
    weight = torch.from_numpy(np.random.default_rng(1).standard_normal(shape).astype(np.float32))
    codes, params = TensorCoreNVFP4Layout.quantize(weight)
    _saved(tmp_path / "a.safetensors", TensorCoreNVFP4Layout.state_dict_tensors(codes, params), "nvfp4")
    want = TensorCoreNVFP4Layout.dequantize(codes, params).numpy()
    got = open_weights(tmp_path / "a.safetensors")["a.weight"]
    assert got.shape == shape and got.values().tobytes() == want.tobytes()
    assert np.linalg.norm(want - weight.numpy()) < 0.15 * np.linalg.norm(weight.numpy())


@pytest.mark.parametrize("shape", [(32, 32), (160, 96), (256, 320)])
def test_mxfp8_files(tmp_path, shape):
    weight = torch.from_numpy(np.random.default_rng(1).standard_normal(shape).astype(np.float32))
    codes, params = TensorCoreMXFP8Layout.quantize(weight)
    _saved(tmp_path / "a.safetensors", TensorCoreMXFP8Layout.state_dict_tensors(codes, params), "mxfp8")
    want = TensorCoreMXFP8Layout.dequantize(codes, params).numpy()
    got = open_weights(tmp_path / "a.safetensors")["a.weight"]
    assert got.shape == shape and got.values().tobytes() == want.tobytes()
    assert np.linalg.norm(want - weight.numpy()) < 0.05 * np.linalg.norm(weight.numpy())


def _saved(path, tensors, kind):
    config = torch.tensor(list(json.dumps({"format": kind}).encode()), dtype=torch.uint8)
    save_file({"a.comfy_quant": config} | {f"a.weight{end}": t.contiguous() for end, t in tensors.items()}, path)
