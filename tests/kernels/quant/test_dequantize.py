"""Every block format: bit for bit as gguf-py, and as the bits of the format say."""

import gguf
import numpy as np
import pytest
from naive.quant import formats as naive
from numba import config

from refsd.kernels.quant import BLOCK_TYPES, grids
from refsd.kernels.quant.block_type import halves
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor

ACTIVATIONS = {"q8_1", "q8_k"}
IN_FILES = sorted(set(BLOCK_TYPES) - ACTIVATIONS)
# What gguf-py 0.17 or later expands.
BY_GGUF = sorted(set(IN_FILES) - {"q1_0", "q2_0"})
# Byte offsets of each format's float16 scales.
SCALES = {
    "q4_0": (0,),
    "q4_1": (0, 2),
    "q5_0": (0,),
    "q5_1": (0, 2),
    "q8_0": (0,),
    "q2_k": (80, 82),
    "q3_k": (108,),
    "q4_k": (0, 2),
    "q5_k": (0, 2),
    "q6_k": (208,),
    "iq1_s": (0,),
    "iq1_m": (),  # one, in four pieces
    "iq2_xxs": (0,),
    "iq2_xs": (0,),
    "iq2_s": (0,),
    "iq3_xxs": (0,),
    "iq3_s": (0,),
    "iq4_nl": (0,),
    "iq4_xs": (0,),
    "tq1_0": (52,),
    "tq2_0": (64,),
    "mxfp4": (),
    "nvfp4": (),
    "q1_0": (0,),
    "q2_0": (0,),
}
SPECIAL = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFE55]


def random_blocks(name: str, n: int) -> np.ndarray:
    """Random bytes hold every code; the float16 scales are made finite."""
    blocks = np.random.default_rng(7).integers(0, 256, (n, BLOCK_TYPES[name].bytes), np.uint8)
    for offset in SCALES[name]:
        blocks[:, offset + 1] &= 0xBB
    if name == "iq1_m":
        blocks[:, 55] &= 0xBF
    return blocks


def special_blocks(name: str) -> np.ndarray:
    """Zero, subnormal, largest, infinite and NaN scales, alone and in pairs."""
    blocks = random_blocks(name, len(SPECIAL) ** 2)
    pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL], "<u2")
    for k, offset in enumerate(SCALES[name]):
        blocks[:, offset : offset + 2] = pairs[:, k : k + 1].copy().view(np.uint8)
    if name == "iq1_m":
        for k, byte in enumerate((49, 51, 53, 55)):
            blocks[:, byte] = blocks[:, byte] & 0xF | (pairs[:, 0] >> 4 * k & 0xF) << 4
    return blocks


def by_gguf(name: str, blocks: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.dequantize(blocks, gguf.GGMLQuantizationType[name.upper()])


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    """The same bits, -0 and infinities included; a NaN is a NaN."""
    assert ours.dtype == theirs.dtype == np.float32 and ours.shape == theirs.shape
    same = (ours.view(np.uint32) == theirs.view(np.uint32)) | (np.isnan(ours) & np.isnan(theirs))
    assert same.all(), np.argwhere(~same)[:5]


def test_every_type_is_tested():
    assert {*SCALES, *ACTIVATIONS} >= set(BLOCK_TYPES)
    assert all(any(hasattr(module, name) for module in naive.MODULES) for name in BLOCK_TYPES)


@pytest.mark.parametrize("name", sorted({*IN_FILES} - {"q2_0"}))
def test_sizes_and_ids_are_ggufs(name):
    block_type = BLOCK_TYPES[name]
    kind = gguf.GGMLQuantizationType(block_type.ggml_id)
    assert kind.name.lower() == name
    assert gguf.GGML_QUANT_SIZES[kind] == (block_type.block, block_type.bytes)


@pytest.mark.smoke
@pytest.mark.parametrize("name", BY_GGUF)
def test_bits_of_gguf_py(name):
    for blocks in (random_blocks(name, 64), special_blocks(name)):
        with np.errstate(all="ignore"):
            assert_same_bits(BLOCK_TYPES[name].dequantize(blocks), by_gguf(name, blocks))


@pytest.mark.parametrize("name", BY_GGUF)
def test_every_scale_code(name):
    """Each byte that is not a float16 takes each of its 256 values while the others stand still."""
    blocks = np.repeat(random_blocks(name, 1), 256 * BLOCK_TYPES[name].bytes, axis=0)
    floats = {o + k for o in SCALES[name] for k in (0, 1)}
    for byte in set(range(BLOCK_TYPES[name].bytes)) - floats:
        blocks[256 * byte : 256 * byte + 256, byte] = np.arange(256)
    # Primes: the bytes that stay are of every position.
    step = (1 if BLOCK_TYPES[name].bytes < 40 else 13) * (11 if config.DISABLE_JIT else 1)
    blocks = blocks[::step]
    assert_same_bits(BLOCK_TYPES[name].dequantize(blocks), by_gguf(name, blocks))


@pytest.mark.parametrize("name", sorted(BLOCK_TYPES))
def test_as_the_bits_say(name):
    if name in ACTIVATIONS:
        x = np.random.default_rng(3).standard_normal((9, BLOCK_TYPES[name].block)).astype(np.float32)
        blocks = BLOCK_TYPES[name].quantize(x)
    else:
        blocks = random_blocks(name, 64)
    values, magnitude = naive.dequantize(name, blocks)
    ours = BLOCK_TYPES[name].dequantize(blocks)
    assert (abs(ours - values) <= 2.0**-23 * magnitude).all()
    if name not in ("q8_k", "q2_k", "q4_1", "q4_k", "q5_1", "q5_k"):  # one product, which float32 holds
        assert (ours == values).all()


@pytest.mark.parametrize("name", IN_FILES)
def test_layout_of_the_array_does_not_matter(name):
    blocks = random_blocks(name, 8)
    wide = np.zeros((8, BLOCK_TYPES[name].bytes + 3), np.uint8)
    wide[:, 3:] = blocks
    mapped = np.frombuffer(blocks.tobytes(), np.uint8).reshape(blocks.shape)
    expected = BLOCK_TYPES[name].dequantize(blocks)
    assert_same_bits(BLOCK_TYPES[name].dequantize(wide[:, 3:]), expected)
    assert_same_bits(BLOCK_TYPES[name].dequantize(mapped), expected)
    assert BLOCK_TYPES[name].dequantize(blocks[:0]).shape == (0, BLOCK_TYPES[name].block)


@pytest.mark.parametrize("name", sorted(BLOCK_TYPES))
def test_into_memory_of_the_callers(name):
    blocks = random_blocks(name, 5) if name in IN_FILES else np.zeros((5, BLOCK_TYPES[name].bytes), np.uint8)
    out = np.full((5, BLOCK_TYPES[name].block), np.nan, np.float32)
    assert BLOCK_TYPES[name].dequantize(blocks, out=out) is out
    assert_same_bits(out, BLOCK_TYPES[name].dequantize(blocks))
    for wrong in (out[:4], out.astype(np.float64), np.asfortranarray(out)):
        with pytest.raises(AssertionError):
            BLOCK_TYPES[name].dequantize(blocks, out=wrong)


@pytest.mark.jitted
def test_every_float16():
    patterns = np.arange(65536, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        wide = patterns.view(np.float16).astype(np.float32)
    assert_same_bits(halves(patterns.view(np.uint8).reshape(-1, 2), 0), wide)
    # Q1_0 with all bits set is d itself
    blocks = np.full((65536, 18), 0xFF, np.uint8)
    blocks[:, :2] = patterns[:, None].view(np.uint8)
    assert_same_bits(BLOCK_TYPES["q1_0"].dequantize(blocks)[:, 0].copy(), wide)


def test_grids_are_gguf_pys():
    for name, kind in (("IQ1", "IQ1_S"), *((n, n) for n in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"))):
        theirs = getattr(gguf.quants, kind)
        theirs.init_grid()
        assert (getattr(grids, name) == theirs.grid.reshape(theirs.grid_shape)).all()
    signs = np.unpackbits(np.frombuffer(gguf.quants.IQ2_XXS.ksigns, np.uint8)[:, None], axis=1, bitorder="little")
    assert (1 - 2.0 * signs == grids.EVEN_SIGNS).all()
    assert ([[-1 if byte >> j & 1 else 1 for j in range(8)] for byte in range(256)] == grids.SIGNS).all()


@pytest.mark.smoke
def test_by_hand():
    """The types that gguf-py does not expand, from a few bytes and their meaning."""
    two = [0x00, 0x40]
    q1_0 = BLOCK_TYPES["q1_0"].dequantize(np.array([[*two, 0b00000101, *[0] * 14, 0x80]], np.uint8))[0]
    assert (np.flatnonzero(q1_0 == 2) == [0, 2, 127]).all() and (q1_0 == -2).sum() == 125
    q2_0 = BLOCK_TYPES["q2_0"].dequantize(np.array([[*two, 0b11100100, *[0x55] * 14, 0xC0]], np.uint8))[0]
    assert (q2_0[:4] == [-2, 0, 2, 4]).all() and (q2_0[60:] == [-2, -2, -2, 4]).all() and (q2_0[4:60] == 0).all()
    q8_1 = BLOCK_TYPES["q8_1"].dequantize(np.array([[*two, 0xFF, 0xFF, 0x80, 0x7F, *[0] * 30]], np.uint8))[0]
    assert (q8_1[:2] == [-256, 254]).all() and (q8_1[2:] == 0).all()


def test_4_bit_floats():
    """E2M1 is 0, 0.5, 1, 1.5, 2, 3, 4, 6 and the same negative; -0 is 0, and the edges of the scales are ggml's."""
    codes = np.arange(16)
    mxfp4 = np.zeros((256, 17), np.uint8)
    mxfp4[:, 0], mxfp4[:, 1:] = np.arange(256), codes
    y = BLOCK_TYPES["mxfp4"].dequantize(mxfp4)
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    assert (y[127, :16] == e2m1).all() and not np.signbit(y[127, 8]) and (y[127, 16:] == 0).all()
    assert y[0, 1] == 2.0**-128 and y[255, 1] == 2.0**127 and np.isinf(y[255, 7])
    nvfp4 = np.zeros((256, 36), np.uint8)
    nvfp4[:, 1], nvfp4[:, 12:20] = np.arange(256), np.arange(2, 10)
    y = BLOCK_TYPES["nvfp4"].dequantize(nvfp4)[:, 16]  # the code 2, which is 1
    assert y[0x38] == 1 and y[1] == 2.0**-9 and y[0x7E] == 448 and y[0x7F] == 0 and y[0xFF] == 480 and y[0x80] == 0


@pytest.mark.parametrize("name", IN_FILES)
def test_a_stored_tensor_is_read_row_by_row(name):
    block_type = BLOCK_TYPES[name]
    blocks = random_blocks(name, 6)
    tensor = StoredTensor(name, (3, 2 * block_type.block), blocks.reshape(-1))
    assert_same_bits(tensor.values(), block_type.dequantize(blocks).reshape(3, -1))


def test_float16_and_bfloat16_are_ggufs():
    """All 65536 patterns widened, and float32 narrowed: ties, overflow, subnormals, infinities."""
    patterns = np.arange(65536, dtype=np.uint16)
    for name, kind in (("f16", gguf.GGMLQuantizationType.F16), ("bf16", gguf.GGMLQuantizationType.BF16)):
        dtype = SCALAR_TYPES[name]
        with np.errstate(all="ignore"):
            assert_same_bits(
                patterns.view(dtype).astype(np.float32), gguf.dequantize(patterns.view(np.uint8), kind)
            )
            x = np.random.default_rng(5).integers(0, 1 << 32, 4096, np.uint32).view(np.float32)
            x[:8] = [np.inf, -np.inf, 65519.9, 65520, 2.0**-25, 3e-8, 1.00048828125, -0.0]
            x = x[~np.isnan(x)]
            theirs = gguf.quantize(x, kind).view(np.uint16)
            assert (x.astype(dtype).view(np.uint16) == theirs).all()
