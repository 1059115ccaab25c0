"""Benchmark rows for dequantization, one for each of ggml's block types, in gigabytes of float32 a second."""

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from refsd.bench.ggml_graphs import GgmlTools
from refsd.bench.row import Absent, Column, Ready, Row, normal
from refsd.kernels.quant import BLOCK_TYPES

ELEMENTS = 1 << 23
# Types that only quantized activations have; no file contains them.
TYPES = [name for name in BLOCK_TYPES if name not in ("q8_1", "q8_k")]


def _blocks(name: str) -> np.ndarray:
    """Draw random bytes as blocks; their values do not affect the time."""
    kind = BLOCK_TYPES[name]
    return np.random.default_rng(0).integers(0, 256, (ELEMENTS // kind.block, kind.bytes), np.uint8)


def _row(name: str) -> Row:
    kind = BLOCK_TYPES[name]

    def refsd(_):
        blocks = _blocks(name)
        out = np.empty((len(blocks), kind.block), np.float32)
        return Ready(lambda: kind.dequantize(blocks, out=out))

    def copy(_):
        from refsd.bench.memory_copy import copied, copy_into

        x = normal("copy", ELEMENTS)
        y = copied(x)
        return Ready(lambda: copy_into(x, y))

    def ggml(tools: GgmlTools):
        function = _expander(tools, name)
        blocks = _blocks(name)
        out = np.empty((len(blocks), kind.block), np.float32)
        cut = [part * len(blocks) // tools.threads for part in range(tools.threads + 1)]
        pool = ThreadPoolExecutor(tools.threads)

        def part(first: int, last: int) -> None:
            pointers = (array[first:].ctypes.data_as(ctypes.c_void_p) for array in (blocks, out))
            function(*pointers, ctypes.c_int64((last - first) * kind.block))

        return Ready(lambda: list(pool.map(part, cut[:-1], cut[1:])))

    def gguf_py(gguf):
        blocks = _blocks(name)
        member = gguf.GGMLQuantizationType.__members__.get(name.upper())
        try:
            gguf.dequantize(blocks[:1], member)
        except (NotImplementedError, AttributeError, KeyError):
            raise Absent(f"gguf-py has no {name}") from None
        return Ready(lambda: gguf.dequantize(blocks, member))

    columns = {
        "refsd": Column(("refsd",), refsd),
        "copy": Column(("refsd",), copy),
        "ggml": Column(("ggml", "ggml-llamafile"), ggml),
        "gguf-py": Column(("gguf-py",), gguf_py),
    }
    return Row(f"dequantize/{name}", columns, bytes=4 * ELEMENTS)


def _expander(tools: GgmlTools, name: str):
    """Return ggml's C function that dequantizes a row. Raises Absent if the library lacks it."""
    symbol = f"dequantize_row_{name[:-1] + 'K' if name.endswith('_k') else name}"
    for file in tools.libggml.files:
        library = ctypes.CDLL(str(file))
        if hasattr(library, symbol):
            return getattr(library, symbol)
    raise Absent(f"this libggml has no {symbol}")


ROWS = [_row(name) for name in TYPES]
