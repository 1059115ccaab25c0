"""Products of blocks: exact integers, ggml's recorded bits, and the rounding that float32 must have."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive.linear_quantized import linear_quantized as naive
from numba import config
from quantized_factors import factors

from refsd.kernels.linear_quantized import DOTS, linear_quantized
from refsd.kernels.quant import BLOCK_TYPES
from refsd.kernels.quant.integers import UNITS, integers
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import GGML_CPU

RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "ggml_dots.json").read_text())["bits"]
EPS = 2.0**-24


def test_every_type_has_its_integers_and_a_record():
    assert DOTS.keys() == UNITS.keys() == RECORDED.keys()


@pytest.mark.parametrize("name", DOTS)
def test_ggmls_bits(name):
    """Recorded: each type's order of float32 products and sums."""
    x, _, blocks = factors(name, 3, 4, 768)
    y = linear_quantized(x, blocks, name)
    np.testing.assert_array_equal(y.view(np.uint32), np.array(RECORDED[name], np.uint32))


@pytest.mark.parametrize("name", DOTS)
@given(
    seed=st.integers(0, 2**32 - 1), M=st.integers(1, 3), n=st.integers(1, 3), data=st.sampled_from(["bell", "wide"])
)
def test_within_float32_of_the_expanded_product(name, seed, M, n, data):
    x, packed, blocks = factors(name, M, 3, 256 * n, seed, data=data)
    y, magnitude = naive(DOTS[name].activation, packed, name, blocks)
    assert (abs(linear_quantized(x, blocks, name) - y) <= (12 + 8 * n) * EPS * magnitude).all()


@pytest.mark.parametrize("name", DOTS)
def test_integers_are_whole_and_fit_a_product_in_int32(name):
    _, _, blocks = factors(name, 1, 8, 512)
    q = integers(name, blocks)
    assert q.shape == (*blocks.shape[:2], BLOCK_TYPES[name].block)
    assert (q == np.rint(q)).all() and 0 < abs(q).max() <= 2**13
    assert 2**13 * 127 * 256 < 2**31


@pytest.mark.parametrize("name", DOTS)
def test_one_code_finds_one_weight(name):
    """A row with a single activation of 127 multiplies by one weight, minimum included."""
    block = 256
    _, _, blocks = factors(name, 1, 3, block)
    columns = np.arange(0, block, 9 if config.DISABLE_JIT else 1)
    x = 127 * np.eye(block, dtype=np.float32)[columns]
    activation = BLOCK_TYPES[DOTS[name].activation]
    packed = activation.quantize_activation(x.reshape(-1, activation.block)).reshape(len(x), -1, activation.bytes)
    w = BLOCK_TYPES[name].dequantize(blocks.reshape(-1, blocks.shape[2])).reshape(3, block)[:, columns]
    _, magnitude = naive(DOTS[name].activation, packed, name, blocks)
    assert (abs(linear_quantized(x, blocks, name) - 127 * w.T.astype(np.float64)) <= 4 * EPS * magnitude).all()


@pytest.mark.parametrize("name", DOTS)
def test_layout_leading_axes_and_chunks_do_not_matter(name, monkeypatch):
    x, _, blocks = factors(name, 4, 7, 256)
    expected = linear_quantized(x, blocks, name)
    mapped = np.frombuffer(blocks.tobytes(), np.uint8).reshape(blocks.shape)
    np.testing.assert_array_equal(linear_quantized(np.asfortranarray(x), mapped, name), expected)
    np.testing.assert_array_equal(
        linear_quantized(x.reshape(2, 1, 2, -1), blocks, name), expected.reshape(2, 1, 2, 7)
    )
    monkeypatch.setattr("refsd.kernels.linear_quantized._CHUNK", 512)
    np.testing.assert_array_equal(linear_quantized(x, blocks, name), expected)


@pytest.mark.parametrize("name", sorted(DOTS.keys() & GGML_CPU.activations.keys()))
def test_the_oracles_emulation_is_the_same_product(name):
    """golden multiplies expanded activations with expanded weights: it differs by float32 rounding alone.

    Q8_1's sums are float16: half a unit of that times the minimum comes on top.
    """
    x, packed, blocks = factors(name, 5, 6, 512)
    a = Arithmetic(GGML_CPU)
    w = BLOCK_TYPES[name].dequantize(blocks.reshape(-1, blocks.shape[2])).reshape(6, -1)
    emulated = a.linear(x, w, weight_type=name).astype(np.float64)
    _, magnitude = naive(DOTS[name].activation, packed, name, blocks)
    allowed = 2.0**-11 if DOTS[name].activation == "q8_1" else 16 * EPS
    assert (abs(linear_quantized(x, blocks, name) - emulated) <= allowed * magnitude).all()
