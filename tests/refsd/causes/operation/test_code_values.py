"""Codes that are read as other values are found from the numbers alone, and nothing else is."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.causes.operation.block_parts import parts_of
from refsd.causes.operation.code_values import code_values
from refsd.kernels.quant import BLOCK_TYPES


def _tensor(name):
    (tensor,) = CASES[name].realize().values()
    return tensor


def _parts(tensor):
    parts = parts_of(tensor.type, tensor.data.reshape(-1, BLOCK_TYPES[tensor.type].bytes))
    assert parts is not None
    return parts


@pytest.mark.parametrize("type", ["q4_0", "q6_k", "iq4_nl"])
def test_a_code_is_named(type):
    tensor = _tensor(f"dequantize/{type}/r33-d512" if type != "iq4_nl" else "dequantize/iq4_nl/r9-d512")
    parts = _parts(tensor)
    q = parts.low + (parts.high.astype(np.int64) << parts.bits)
    unit = np.repeat(parts.d * parts.s, q.shape[1] // parts.s.shape[1], axis=1)
    found = parts.values() + np.where(q == 3, 0.5 * unit, 0)
    phrase, y = next(code_values(tensor, found.reshape(tensor.shape)))
    assert "codes read as other values: 3 as" in phrase and "more" not in phrase
    assert np.allclose(y.ravel(), found.ravel(), rtol=1e-5)


def test_a_code_of_a_scale_is_named():
    tensor = _tensor("dequantize/q4_k/r33-d512")
    parts = _parts(tensor)
    found = parts._replace(s=np.minimum(parts.s, 40)).values()
    phrase, _ = next(code_values(tensor, found.reshape(tensor.shape)))
    assert "codes of scales read as other values" in phrase


def test_an_8_bit_float_is_named():
    tensor = _tensor("dequantize/f8_e4m3/r9-d512")
    codes = tensor.data.view(np.uint8)
    found = np.where(codes == codes[0, 1], 7.0, np.asarray(tensor.values(), np.float64))
    phrase, _ = next(code_values(tensor, found))
    assert f"{codes[0, 1]} as" in phrase


def test_right_values_and_noise_are_not_explained():
    tensor = _tensor("dequantize/q4_0/r33-d512")
    right = np.asarray(tensor.values(), np.float64)
    noise = np.random.default_rng(3).standard_normal(right.shape)
    assert not [*code_values(tensor, right)]
    assert not [*code_values(tensor, right * (1 + 0.01 * noise))]
