"""The tables of docs/quants.md: `python -P benchmarks/quants_study.py FOLDER`, of the newest shared libggml.

Every scale code and random blocks, expanded; rows of several kinds, packed: refsd against ggml's C and gguf-py.
"""

import ctypes
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np

from refsd.engines.ggml.library import library_files
from refsd.golden.block_scales import SCALE_FIELDS
from refsd.golden.recipe import Recipe, realize
from refsd.kernels.quant import BLOCK_TYPES, BlockType
from refsd.kernels.quant.block_type import Importance

RANDOM_BLOCKS = 4096
CHUNK = 4096  # blocks at a time


def random_blocks(kind: BlockType, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, kind.bytes), np.uint8)


def every_code(kind: BlockType) -> Iterator[np.ndarray]:
    """Blocks in which each byte has taken each of its 256 values, and each scale of 16 bits all 65536."""
    for byte in range(kind.bytes):
        blocks = random_blocks(kind, 256, 1 + byte)
        blocks[:, byte] = np.arange(256)
        yield blocks
    patterns = np.arange(1 << 16, dtype="<u2")
    for offset, _, written in SCALE_FIELDS.get(kind.name, ()):
        for first in range(0, 1 << 16, CHUNK):
            blocks = random_blocks(kind, CHUNK, first)
            scale = patterns[first : first + CHUNK]
            if written == "f16":
                blocks[:, offset : offset + 2] = scale[:, None].view(np.uint8)
            elif written == "f16 in pieces":
                for k in range(4):
                    at = offset + 1 + 2 * k
                    blocks[:, at] = blocks[:, at] & 0xF | (scale >> 4 * k & 0xF) << 4
            yield blocks


def all_blocks(kind: BlockType) -> Iterator[np.ndarray]:
    yield from every_code(kind)
    for first in range(0, RANDOM_BLOCKS, CHUNK):
        yield random_blocks(kind, min(CHUNK, RANDOM_BLOCKS - first), 10_000 + first)


def differing(ours: np.ndarray, theirs: np.ndarray) -> int:
    """Values whose bits differ; a NaN is a NaN."""
    return int(((ours.view(np.uint32) != theirs.view(np.uint32)) & ~(np.isnan(ours) & np.isnan(theirs))).sum())


class C:
    """ggml's functions, by their names."""

    def __init__(self, place: Path):
        self.libraries = [ctypes.CDLL(str(file), ctypes.RTLD_GLOBAL) for file in library_files(place)]
        self.function("ggml_cpu_init")()
        self.function("ggml_quantize_chunk").restype = ctypes.c_size_t

    def function(self, name: str):
        """Return a function of ggml. Raises AttributeError if it has none of that name."""
        library = next((lib for lib in self.libraries if hasattr(lib, name)), self.libraries[0])
        return getattr(library, name)

    def dequantize(self, kind: BlockType, blocks: np.ndarray) -> np.ndarray | None:
        try:
            function = self.function(f"dequantize_row_{_in_c(kind)}")
        except AttributeError:
            return None
        out = np.empty((len(blocks), kind.block), np.float32)
        function(_pointer(blocks), _pointer(out), ctypes.c_int64(out.size))
        return out

    def quantize(self, kind: BlockType, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        """x: float32 [rows, width]. -> uint8 [blocks, bytes], as files are made"""
        out = np.zeros((x.size // kind.block, kind.bytes), np.uint8)
        if kind.name not in SCALE_FIELDS:  # never in a file
            self.function(f"quantize_row_{_in_c(kind)}_ref")(_pointer(x), _pointer(out), ctypes.c_int64(x.size))
            return out
        rows, width = x.shape
        weights = None if importance is None else _pointer(importance)
        sizes = (ctypes.c_int64(n) for n in (0, rows, width))
        self.function("ggml_quantize_chunk")(kind.ggml_id, _pointer(x), _pointer(out), *sizes, weights)
        return out


def _in_c(kind: BlockType) -> str:
    return f"{kind.name[:-1]}K" if kind.name.endswith("_k") else kind.name


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def by_gguf(kind: BlockType, blocks: np.ndarray) -> np.ndarray | None:
    member = gguf.GGMLQuantizationType.__members__.get(kind.name.upper())
    try:
        with np.errstate(all="ignore"):
            return None if member is None else gguf.dequantize(blocks, member)
    except NotImplementedError:
        return None


def expanded(kind: BlockType, peer) -> str:
    """How many values were compared, and how many differ."""
    compared = wrong = 0
    for blocks in all_blocks(kind):
        theirs = peer(kind, blocks)
        if theirs is None:
            return "has none"
        compared += theirs.size
        wrong += differing(kind.dequantize(blocks), theirs)
    return f"{wrong} of {compared / 1e6:.1f} M"


def rows_to_pack() -> Iterator[np.ndarray]:
    """float32 [rows, 512]: weights, outliers, many powers of two, small whole numbers, zeros."""
    for data in ("bell", "outliers", "wide", "integers"):
        yield realize(Recipe((32, 512), "f32", data, exponent=0 if data == "integers" else -20), data).data
    yield np.zeros((2, 512), np.float32)


def packed(kind: BlockType, c: C, with_importance: bool) -> str:
    """How many blocks were compared, and how many differ."""
    unused = kind.importance is (Importance.REQUIRED if not with_importance else Importance.UNUSED)
    if kind.quantize is None or unused:
        return "-"
    importance = realize(Recipe((512,), "f32", "positive", exponent=-17), "importance").data
    compared = wrong = 0
    for x in rows_to_pack():
        given = {"importance": importance} if with_importance else {}
        ours = kind.quantize(x.reshape(-1, kind.block), **given)
        theirs = c.quantize(kind, x, importance if with_importance else None)
        compared += len(ours)
        wrong += int((ours != theirs).any(axis=1).sum())
    return f"{wrong} of {compared}"


def main(place: str) -> None:
    c = C(Path(place))
    version = c.function("ggml_version")
    if version is not None:
        version.restype = ctypes.c_char_p
        print(f"ggml {version().decode()}, gguf-py {importlib.metadata.version('gguf')}\n")
    print("| type | id | elements, bytes | expanded, C | expanded, gguf-py | packed, C | packed, C, importance |")
    print("|---|---|---|---|---|---|---|")
    for kind in BLOCK_TYPES.values():
        cells = (
            kind.name.upper(),
            str(kind.ggml_id),
            f"{kind.block}, {kind.bytes}",
            expanded(kind, c.dequantize),
            expanded(kind, by_gguf),
            packed(kind, c, False),
            packed(kind, c, True),
        )
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
