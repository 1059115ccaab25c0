"""Packing: bit for bit as gguf-py for files; as ggml's CPU for activations."""

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsd.kernels.quant import BLOCK_TYPES

PACKED = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "tq1_0", "tq2_0", "mxfp4"]


def awkward_rows(block: int) -> np.ndarray:
    """Gaussian rows of many sizes; zeros, ties of rounding, equal magnitudes of both signs, subnormals."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal((400, block)) * np.exp2(rng.integers(-20, 12, (400, 1)))
    x = x.astype(np.float32)
    x[0], x[1] = 0, -0.0
    x[2], x[3] = np.arange(block) / 2 - 8, 8 - np.arange(block) / 2
    x[4], x[5] = np.arange(block) - 127, np.arange(block) + 0.5
    x[5, 0] = x[6, 0] = 127
    x[6, 1:] = -(np.arange(block - 1) % 126) - 0.5
    x[7], x[8] = 1, np.where(np.arange(block) % 2, 3, -3)
    x[9] = np.float32(1e-36) * np.arange(block)
    x[10, 1:] = 0
    return x


@pytest.mark.parametrize("name", PACKED)
def test_bits_of_gguf_py(name):
    x = awkward_rows(BLOCK_TYPES[name].block)
    with np.errstate(all="ignore"):
        ours, theirs = BLOCK_TYPES[name].quantize(x), gguf.quantize(x, gguf.GGMLQuantizationType[name.upper()])
    if name in ("q4_0", "q5_0"):
        assert (ours[1, 1], theirs[1, 1]) == (0x80, 0), "row 1 is -0: see q4_0.quantize"
        theirs[1, 1] = 0x80
    assert (ours == theirs).all()


@given(st.integers(0, 2**32 - 1), st.integers(-100, 100))
def test_q8_0_activation_rounds_half_to_even_of_127_over_the_largest(seed, exponent):
    x = np.random.default_rng(seed).standard_normal((3, 32)).astype(np.float32) * np.float32(2.0**exponent)
    blocks = BLOCK_TYPES["q8_0"].quantize_activation(x)
    largest = abs(x).max(axis=1, keepdims=True)
    codes = np.rint(x * (np.float32(127) / largest))
    with np.errstate(all="ignore"):
        scales = (largest / np.float32(127)).astype("<f2")
    assert (blocks[:, 2:].view(np.int8) == codes).all()
    assert (blocks[:, :2] == scales.view(np.uint8)).all()


def test_q8_0_activation_is_not_the_files_rounding():
    x = np.zeros((1, 32), np.float32)
    x[0, :4] = 127, 0.5, 2.5, -2.5
    codes = lambda pack: pack(x)[0, 2:6].view(np.int8).tolist()
    assert codes(BLOCK_TYPES["q8_0"].quantize) == [127, 1, 3, -3]
    assert codes(BLOCK_TYPES["q8_0"].quantize_activation) == [127, 0, 2, -2]


@pytest.mark.parametrize("size", [1e-45, 1e-41, 1e-37])
def test_q8_0_where_one_over_the_scale_is_infinite(size):
    """On every CPU what ggml has on x86."""
    x = np.zeros((1, 32), np.float32)
    x[0, :2] = size, -size
    assert set(BLOCK_TYPES["q8_0"].quantize(x)[0, 2:].view(np.int8)) == {0}
    assert set(BLOCK_TYPES["q8_0"].quantize_activation(x)[0, 2:].view(np.int8)) == {-128}


@pytest.mark.parametrize("way", ["quantize", "quantize_activation"])
def test_q8_1_is_q8_0_with_the_sum_of_its_codes(way):
    x = awkward_rows(32)
    blocks, plain = getattr(BLOCK_TYPES["q8_1"], way)(x), getattr(BLOCK_TYPES["q8_0"], way)(x)
    assert (blocks[:, :2] == plain[:, :2]).all() and (blocks[:, 4:] == plain[:, 2:]).all()
    unrounded = abs(x).max(axis=1) / np.float32(127)
    sums = unrounded * plain[:, 2:].view(np.int8).sum(axis=1).astype(np.float32)
    assert (blocks[:, 2:4].copy().view("<f2")[:, 0] == sums.astype(np.float16)).all()
    assert (blocks[:2] == 0).all()


def test_q8_k():
    x = awkward_rows(256)[:, :256]
    blocks = BLOCK_TYPES["q8_k"].quantize_activation(x)
    d = blocks[:, :4].copy().view("<f4")
    qs = blocks[:, 4:260].view(np.int8)
    bsums = blocks[:, 260:].copy().view("<i2")
    assert (bsums == qs.reshape(-1, 16, 16).astype(int).sum(axis=2)).all()
    assert (blocks[0] == 0).all() and (blocks[1] == 0).all()
    rows = np.arange(2, len(x))
    first = abs(x).argmax(axis=1)
    assert (qs[rows, first[rows]] == -127).all()
    assert (np.sign(d[rows, 0]) == -np.sign(x[rows, first[rows]])).all()
    error = abs(BLOCK_TYPES["q8_k"].dequantize(blocks) - x)
    assert (error <= 0.5001 * abs(d)).all()


@pytest.mark.parametrize("name", ["q8_0", "q8_1", "q8_k"])
def test_rows_may_be_read_only_and_strided(name):
    x = awkward_rows(BLOCK_TYPES[name].block)
    expected = BLOCK_TYPES[name].quantize_activation(x)
    x.flags.writeable = False
    assert (BLOCK_TYPES[name].quantize_activation(x) == expected).all()
    assert (BLOCK_TYPES[name].quantize_activation(np.asfortranarray(x)) == expected).all()
