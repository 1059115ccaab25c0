"""Products in MX formats and in blocks of E4M3 against torchao 0.18: activations bit for bit, and the product."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torchao.prototype.mx_formats.kernels import unpack_uint4
from torchao.prototype.mx_formats.mx_tensor import MXTensor, ScaleCalculationMode, to_mx
from torchao.quantization.quant_primitives import (
    _choose_scale_float8,
    _dequantize_affine_float8,
    _quantize_affine_float8,
)

from refsd.golden import operations
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.numerics.quantization import Quantization, block_scales, in_blocks, quantize
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

_MODES = {"up": ScaleCalculationMode.RCEIL, "floor": ScaleCalculationMode.FLOOR}
_RULES = {"up": "e8m0", "floor": "e8m0_floor"}
_TYPES = {
    "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
    "f4_e2m1": torch.float4_e2m1fn_x2,
}


@pytest.mark.parametrize("scales", _MODES)
@pytest.mark.parametrize("kind", _TYPES)
def test_activations_are_the_same_bit_for_bit(kind, scales):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(200, 320, generator=draw) * torch.exp2(torch.arange(-100.0, 100))[:, None]
    x[7] = 0
    x[11:40] = torch.randint(-4, 5, (29, 320), generator=draw).float()
    exponents, codes = to_mx(x, _TYPES[kind], 32, _MODES[scales])
    how = Quantization(kind, "none", block=32, block_scale=_RULES[scales])
    ours = quantize(x.numpy(), how, lambda y: y).values
    powers = block_scales(in_blocks(x.numpy(), 32), how, np.ones(1, np.float32))[..., 0]
    theirs = torch.exp2(exponents.view(torch.uint8).float() - 127).numpy().reshape(powers.shape)
    zero = powers == 0  # whose power is any
    assert (theirs[~zero] == powers[~zero]).all() and zero.any()
    if kind == "f4_e2m1":
        table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
        values = table[unpack_uint4(codes.view(torch.uint8)).numpy()].reshape(x.shape)
    else:
        values = codes.float().numpy().reshape(x.shape)
    assert (np.repeat(theirs, 32, axis=1) * values == ours).all()


@pytest.mark.parametrize("op", ["linear_mxfp8", "linear_mxfp4"])
def test_its_product_is_inside_the_bound(op):
    """Both factors by torchao, packed as it packs them; MXTensor widens them where no card multiplies them."""
    draw = torch.Generator().manual_seed(3)
    x, w = torch.randn(2, 9, 96, generator=draw), torch.randn(48, 96, generator=draw)
    kind = _TYPES["f8_e4m3" if op == "linear_mxfp8" else "f4_e2m1"]
    for scales, mode in _MODES.items():
        left, right = (MXTensor.to_mx(t, kind, 32, mode) for t in (x, w))
        expected = (left.dequantize() @ right.dequantize().T).numpy()
        codes, exponents = right.qdata.view(torch.uint8).numpy(), right.scale.view(torch.uint8).numpy()
        shape = (48, 96) if op == "linear_mxfp8" else (48, 48)
        weight = stored(codes.reshape(shape))
        if op == "linear_mxfp8":
            weight = stored(codes.reshape(shape).view(ml_dtypes.float8_e4m3fn))
        inputs = {"x": stored(x.numpy()), "weight": weight, "block_scale": stored(exponents.reshape(48, 3))}
        truth = operations.run(op, Arithmetic(FLOAT64), inputs, {"scales": scales})["y"]
        limit = operations.bound(op, FLOAT32, inputs, {"scales": scales}, truth).limit
        assert (abs(expected - truth) <= limit).all() and np.median(limit) < 1e-4 * np.abs(truth).mean()


def test_blocks_of_e4m3_are_the_same():
    draw = torch.Generator().manual_seed(4)
    x, w = torch.randn(9, 384, generator=draw), torch.randn(256, 384, generator=draw)
    scales = [_choose_scale_float8(t, block) for t, block in ((x, [1, 128]), (w, [128, 128]))]
    codes = [_quantize_affine_float8(t, s) for t, s in zip((x, w), scales, strict=True)]
    how = Quantization("f8_e4m3", "none", block=128, block_scale="f32", quotient="wide")
    ours = quantize(x.numpy(), how, lambda y: y).values
    assert (ours == _dequantize_affine_float8(codes[0], scales[0]).numpy()).all()
    weight = stored(codes[1].view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn))
    inputs = {"x": stored(x.numpy()), "weight": weight, "block_scale": stored(scales[1].numpy())}
    truth = operations.run("linear_fp8_blocks", Arithmetic(FLOAT64), inputs, {})["y"]
    left, right = (_dequantize_affine_float8(*of) for of in zip(codes, scales, strict=True))
    limit = operations.bound("linear_fp8_blocks", FLOAT32, inputs, {}, truth).limit
    assert (abs((left @ right.T).numpy() - truth) <= limit).all() and np.median(limit) < 1e-3 * np.abs(truth).mean()
