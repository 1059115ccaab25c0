"""Scaled 8-bit floats, scaled int8 and ConvRot against comfy-kitchen's eager kernels, which ComfyUI runs."""

import numpy as np
import pytest
import torch
from comfy_kitchen.backends.eager import quantization as theirs
from comfy_kitchen.tensor.int8_utils import _build_hadamard
from naive.quant import scaled as naive

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
