"""Every block format: bit for bit as gguf-py, and as the bits of the format say."""

import gguf
import numpy as np
import pytest
from naive.quant import formats as naive

from refsd.golden.tensor import SCALAR_TYPES, StoredTensor
from refsd.kernels.quant import BLOCK_TYPES

ACTIVATIONS = {"q8_1", "q8_k"}
IN_FILES = sorted(set(BLOCK_TYPES) - ACTIVATIONS)
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
}
SPECIAL = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFE55]


def random_blocks(name: str, n: int) -> np.ndarray:
    """Random bytes hold every code; the float16 scales are made finite."""
    blocks = np.random.default_rng(7).integers(0, 256, (n, BLOCK_TYPES[name].bytes), np.uint8)
    for offset in SCALES[name]:
        blocks[:, offset + 1] &= 0xBB
    return blocks


def special_blocks(name: str) -> np.ndarray:
    """Zero, subnormal, largest, infinite and NaN scales, alone and in pairs."""
    blocks = random_blocks(name, len(SPECIAL) ** 2)
    pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL], "<u2")
    for k, offset in enumerate(SCALES[name]):
        blocks[:, offset : offset + 2] = pairs[:, k : k + 1].copy().view(np.uint8)
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
    assert all(hasattr(naive, name) for name in BLOCK_TYPES)


@pytest.mark.parametrize("name", IN_FILES)
def test_sizes_and_ids_are_ggufs(name):
    block_type = BLOCK_TYPES[name]
    kind = gguf.GGMLQuantizationType(block_type.ggml_id)
    assert kind.name.lower() == name
    assert gguf.GGML_QUANT_SIZES[kind] == (block_type.block, block_type.bytes)


@pytest.mark.parametrize("name", IN_FILES)
def test_bits_of_gguf_py(name):
    for blocks in (random_blocks(name, 64), special_blocks(name)):
        with np.errstate(all="ignore"):
            assert_same_bits(BLOCK_TYPES[name].dequantize(blocks), by_gguf(name, blocks))


@pytest.mark.parametrize("name", IN_FILES)
def test_every_scale_code(name):
    """Each byte that is not a float16 takes each of its 256 values while the others stand still."""
    blocks = np.repeat(random_blocks(name, 1), 256 * BLOCK_TYPES[name].bytes, axis=0)
    floats = {o + k for o in SCALES[name] for k in (0, 1)}
    for byte in set(range(BLOCK_TYPES[name].bytes)) - floats:
        blocks[256 * byte : 256 * byte + 256, byte] = np.arange(256)
    step = 1 if BLOCK_TYPES[name].bytes < 40 else 13
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
    assert (abs(BLOCK_TYPES[name].dequantize(blocks) - values) <= 2.0**-23 * magnitude).all()


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


@pytest.mark.parametrize("name", IN_FILES)
def test_a_stored_tensor_is_read_row_by_row(name):
    block = BLOCK_TYPES[name].block
    blocks = random_blocks(name, 6)
    tensor = StoredTensor(name, (3, 2 * block), blocks.reshape(-1))
    assert_same_bits(tensor.values(), by_gguf(name, blocks.reshape(3, -1)))


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
