"""Codes under one scale a group: NF4 and FP4 of bitsandbytes, NVFP4 and MXFP8 of ComfyUI.

            codes               group             scale
nf4, fp4    two a byte          64, or a file's   float32, or itself codes of 8 bits (`nested`)
nvfp4       two a byte          16                E4M3 times the tensor's float32
mxfp8       one a byte, E4M3    32                E8M0, a power of two

Of two codes in a byte the first stands in the upper half. bitsandbytes counts groups through the whole tensor,
ComfyUI along each row, and keeps its scales in the order in which tensor cores read them.
"""

import ml_dtypes
import numba
import numpy as np

from refsd.kernels._jit import kernel
from refsd.kernels.quant.block_type import frozen

_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3]) / 12
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def _table(values) -> np.ndarray:
    return frozen(np.asarray(values, np.float32))


# What each code stands for. NF4: Dettmers et al. 2023, appendix E; FP4: bitsandbytes, which has one zero.
TABLES: dict[str, np.ndarray] = {
    "nf4": _table(_NF4),
    "fp4": _table([*_FP4, *(0 - _FP4)]),
    "nvfp4": _table([*_E2M1, *-_E2M1]),
    "mxfp8": _table(np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)),
}

TILE_ROWS, TILE_COLUMNS = 128, 4  # of the tensor cores' scales


def dequantize(codes, table, scale, group):
    """Expand codes of 4 or 8 bits.

        y_i = table[q_i] scale[i // group]

    codes: uint8 [ceil(n / 2)], or [n] with a table of 256
    table: float32 [16], or [256]
    scale: float32 [m]; m group is n or, in a last group that is cut short, more
    group: elements, an even number
    -> y:  float32 [n], n as many as the codes and the scales have room for; the product rounded to float32

    Error: none but that rounding; bit-exact with bitsandbytes and comfy-kitchen.
    Source: bitsandbytes, functional.dequantize_4bit; comfy_kitchen, dequantize_nvfp4 and dequantize_mxfp8.
    """
    scale = frozen(np.asarray(scale, np.float32))
    if len(table) == 256:
        return _dequantize8(frozen(codes), table, scale, group)
    return _dequantize4(frozen(codes), table, scale, group)


@kernel
def _dequantize4(codes, table, scale, group):
    y = np.empty(2 * codes.size, np.float32)
    for b in numba.prange(codes.size):
        d = scale[2 * b // group]
        y[2 * b] = table[codes[b] >> np.uint8(4)] * d
        y[2 * b + 1] = table[codes[b] & np.uint8(0xF)] * d
    return y


@kernel
def _dequantize8(codes, table, scale, group):
    y = np.empty(codes.size, np.float32)
    for i in numba.prange(codes.size):
        y[i] = table[codes[i]] * scale[i // group]
    return y


def in_rows(tiles, rows, columns):
    """Scales as tensor cores read them, put back in rows.

        s[128 I + 32 a + b, 4 J + c] = tiles[I, J, b, a, c]

    tiles: [128 ceil(rows / 128), 4 ceil(columns / 4)]: tiles of 128 by 4, each kept as 32 rows of 16
    -> s:  [rows, columns]

    Source: cuBLAS, "1D block scaling factors layout"; comfy_kitchen, from_blocked.
    """
    high, wide = -(-rows // TILE_ROWS), -(-columns // TILE_COLUMNS)
    kept = tiles.reshape(high, wide, 32, 4, TILE_COLUMNS)
    return kept.transpose(0, 3, 2, 1, 4).reshape(high * TILE_ROWS, wide * TILE_COLUMNS)[:rows, :columns]


def in_tiles(scales):
    """Scales in the order in which tensor cores read them: what in_rows undoes.

    scales: [rows, columns] -> [128 ceil(rows / 128), 4 ceil(columns / 4)], 0 where the matrix has ended
    """
    rows, columns = scales.shape
    full = np.pad(scales, [(0, -rows % TILE_ROWS), (0, -columns % TILE_COLUMNS)])
    tiles = full.reshape(len(full) // TILE_ROWS, 4, 32, -1, TILE_COLUMNS).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles).reshape(full.shape)
