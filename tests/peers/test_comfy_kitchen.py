"""Scaled floats and int8, ConvRot, and codes of 4 and 6 bits against comfy-kitchen, which ComfyUI runs."""

import json

import numpy as np
import pytest
import torch
from comfy_kitchen.backends.eager import quantization as theirs
from comfy_kitchen.backends.eager import w4a8_int8 as eager_w4a8
from comfy_kitchen.tensor import (
    AsymW4A8Int8Layout,
    TensorCoreAWQW4A16Layout,
    TensorCoreConvRotW4A4Layout,
    TensorCoreFP8Layout,
    TensorCoreMXFP8Layout,
    TensorCoreNVFP4Layout,
    TensorCoreSVDQuantW4A4Layout,
    TensorWiseINT8Layout,
)
from comfy_kitchen.tensor.int8_utils import _build_hadamard
from naive.quant import scaled as naive
from safetensors.torch import save_file

from refsd.files import comfy_writer
from refsd.files.formats import open_weights
from refsd.kernels.quant import convrot, f8_e4m3, f8_e5m2, int8_scaled, w4a8
from refsd.numerics.tensor import Scaling

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


@pytest.mark.parametrize(
    ("type", "layout", "how"),
    [
        ("nvfp4-w4a4", TensorCoreNVFP4Layout, {}),
        ("mxfp8-w8a8", TensorCoreMXFP8Layout, {}),
        ("comfy-fp8", TensorCoreFP8Layout, {}),
        ("comfy-int8", TensorWiseINT8Layout, {"per_channel": True}),
    ],
)
@pytest.mark.parametrize("shape", [(64, 256), (160, 96)])
def test_what_refsd_writes_is_what_they_write(type, layout, how, shape):
    """Codes, scales, their order and types: each byte of each tensor."""
    weight = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    theirs = layout.state_dict_tensors(*layout.quantize(torch.from_numpy(weight), **how))
    kept = comfy_writer.LAYOUTS[type]
    names = comfy_writer.specs("a.weight", shape, kept)
    ours = dict(zip(names, comfy_writer.tensors("a.weight", weight, kept), strict=True))
    assert set(ours) == {*(f"a.weight{part}" for part in theirs), "a.comfy_quant"}
    for part, tensor in theirs.items():
        assert ours[f"a.weight{part}"].data.tobytes() == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        assert ours[f"a.weight{part}"].shape == tuple(tensor.shape)


@pytest.mark.parametrize("bits", [4, 6])
@pytest.mark.parametrize(("group", "rotation"), [(16, 256), (32, 64)])
@pytest.mark.parametrize("codebook", [True, False])
def test_w4a8_files(tmp_path, bits, group, rotation, codebook):
    """The int8 that is multiplied, bit for bit; the matrix, up to the float32 sums of their rotation."""
    weight = torch.from_numpy(np.random.default_rng(1).standard_normal((48, 512)).astype(np.float32))
    kept = {"group_size": group, "convrot_groupsize": rotation, "codebook": codebook}
    codes, params = AsymW4A8Int8Layout.quantize(weight, bits=bits, **kept)
    tensors = AsymW4A8Int8Layout.state_dict_tensors(codes, params)
    _saved(tmp_path / "a.safetensors", tensors, "asym_w4a8_int8", group_size=group, convrot_groupsize=rotation)
    got = open_weights(tmp_path / "a.safetensors")["a.weight"]
    q = eager_w4a8._dequant_int4_grouped_to_int8(codes, params.scale, params.codebook, group)
    assert got.shape == (48, 512) and got.product_type == f"i8/{rotation}" and (got.data == q.numpy()).all()
    assert isinstance(got.scaling, Scaling) and (got.scaling.scale == params.s_channel.numpy()).all()
    want = AsymW4A8Int8Layout.dequantize(codes, params).numpy()
    assert np.linalg.norm(got.values() - want) <= 1e-6 * np.linalg.norm(want)
    assert np.linalg.norm(want - weight.numpy()) < 0.15 * np.linalg.norm(weight.numpy())


def test_w4a8_files_with_corrections(tmp_path):
    """Codes from the least to the largest of a group: the same matrix, up to the float32 sums of its rotation."""
    weight = torch.from_numpy(np.random.default_rng(1).standard_normal((48, 512)).astype(np.float32) + 0.1)
    codes, params = AsymW4A8Int8Layout.quantize(weight, group_size=16, convrot_groupsize=64, symmetric=False)
    tensors = AsymW4A8Int8Layout.state_dict_tensors(codes, params)
    assert any("correction" in name for name in tensors)
    _saved(tmp_path / "a.safetensors", tensors, "asym_w4a8_int8", group_size=16, convrot_groupsize=64)
    got = open_weights(tmp_path / "a.safetensors")["a.weight"]
    want = AsymW4A8Int8Layout.dequantize(codes, params).numpy()
    assert np.linalg.norm(got.values() - want) <= 1e-6 * np.linalg.norm(want)


@pytest.mark.parametrize("tails", [1.5, 3, 100])
def test_w4a8_is_packed_as_theirs(tails):
    """Codes and scales of groups are theirs, but for ties of float32 sums, which rotate in another order."""
    weight = np.random.default_rng(1).standard_t(tails, (48, 512)).astype(np.float32)
    packed, params = AsymW4A8Int8Layout.quantize(torch.from_numpy(weight), group_size=16, codebook=True)
    codes, scale, of_rows = w4a8.encode(convrot.rotate(weight))
    assert params.codebook.numpy().tolist() == w4a8.USUAL_TABLE.tolist()
    assert (codes != w4a8.unpack(packed.numpy().view(np.uint8))).mean() < 1e-3
    assert (scale != params.scale.float().numpy()).mean() < 1e-3
    np.testing.assert_allclose(of_rows, params.s_channel.numpy(), rtol=1e-6)


@pytest.mark.parametrize("rotation", [64, 256])
def test_w4a4_files(tmp_path, rotation):
    """The codes, bit for bit; the matrix, up to the float32 sums of their rotation."""
    weight = torch.from_numpy(np.random.default_rng(1).standard_normal((48, 512)).astype(np.float32))
    codes, params = TensorCoreConvRotW4A4Layout.quantize(weight, convrot_groupsize=rotation)
    tensors = TensorCoreConvRotW4A4Layout.state_dict_tensors(codes, params)
    _saved(tmp_path / "a.safetensors", tensors, "convrot_w4a4", convrot_groupsize=rotation)
    got = open_weights(tmp_path / "a.safetensors")["a.weight"]
    assert got.shape == (48, 512) and got.product_type == f"i4/{rotation}"
    assert isinstance(got.scaling, Scaling) and (got.scaling.scale == params.scale.numpy()).all()
    want = TensorCoreConvRotW4A4Layout.dequantize(codes, params).numpy()
    assert np.linalg.norm(got.values() - want) <= 1e-6 * np.linalg.norm(want)
    assert np.linalg.norm(want - weight.numpy()) < 0.2 * np.linalg.norm(weight.numpy())


def test_rotated_codes_are_written_as_theirs():
    """But for ties of float32 sums, which rotate in another order."""
    weight = np.random.default_rng(1).standard_normal((48, 512)).astype(np.float32)
    theirs = TensorCoreConvRotW4A4Layout.state_dict_tensors(
        *TensorCoreConvRotW4A4Layout.quantize(torch.from_numpy(weight))
    )
    kept = comfy_writer.LAYOUTS["convrot-w4a4"]
    codes, scale, _ = comfy_writer.tensors("a.weight", weight, kept)
    assert (codes.data != theirs[""].numpy()).mean() < 1e-3
    np.testing.assert_allclose(scale.data, theirs["_scale"].numpy(), rtol=1e-6)


def test_awq_files(tmp_path):
    rng = np.random.default_rng(2)
    codes = torch.from_numpy(rng.integers(-128, 128, (48, 64)).astype(np.int8))
    scale, zeros = (torch.from_numpy(rng.standard_normal((2, 48)).astype(np.float32)) for _ in range(2))
    params = TensorCoreAWQW4A16Layout.Params(scale, torch.float32, (48, 128), zeros)
    _saved(tmp_path / "a.safetensors", TensorCoreAWQW4A16Layout.state_dict_tensors(codes, params), "awq_w4a16")
    got = open_weights(tmp_path / "a.safetensors")["a.weight"]
    assert got.values().tobytes() == TensorCoreAWQW4A16Layout.dequantize(codes, params).numpy().tobytes()


def test_svdquant_files(tmp_path):
    """They dequantise by their own product, of an identity that it rounds to 4 bits: float32's rounding apart."""
    rng = np.random.default_rng(3)
    codes = torch.from_numpy(rng.integers(-128, 128, (48, 64)).astype(np.int8))
    shapes = (2, 48), (128, 8), (48, 8), (128,)
    scale, down, up, smooth = (torch.from_numpy(rng.uniform(0.5, 2, s).astype(np.float32)) for s in shapes)
    params = TensorCoreSVDQuantW4A4Layout.Params(scale, torch.float32, (48, 128), down, up, smooth)
    _saved(
        tmp_path / "a.safetensors", TensorCoreSVDQuantW4A4Layout.state_dict_tensors(codes, params), "svdquant_w4a4"
    )
    want = TensorCoreSVDQuantW4A4Layout.dequantize(codes, params).numpy()
    got = open_weights(tmp_path / "a.safetensors")["a.weight"].values()
    assert got.shape == (48, 128) and np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


def _saved(path, tensors, kind, **settings):
    config = torch.tensor(list(json.dumps({"format": kind, **settings}).encode()), dtype=torch.uint8)
    save_file({"a.comfy_quant": config} | {f"a.weight{end}": t.contiguous() for end, t in tensors.items()}, path)
