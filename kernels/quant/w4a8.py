"""W4A8 and W6A8: rotated codes of 4 or 6 bits, made int8 before they are multiplied; ComfyUI's "asym_w4a8_int8".

weight           uint8 [O, I / 2]: two codes a byte, the first in the lower half; of 6 bits these are the lower 4,
                 and [O, I / 4] follow in each row: the upper 2 of four codes a byte, the first in the lowest bits
weight_s_rel     F8_E4M3 or float32 [O, I / group], a scale for each group of codes
weight_codebook  float32 [16], the number that each code of 4 bits stands for; without it: the code less 8 or 32
weight_s_channel float32 [O], the scale of each row of int8

The matrix is rotated as in convrot.py.
"""

import ml_dtypes
import numpy as np

_FITS = 2  # times that a group's scale is fitted to its codes
_LEAST = np.float32(1e-8)

# The table that comfy-kitchen writes where rotated weights are bell-shaped: Lloyd and Max's 16 levels.
USUAL_TABLE = np.array(
    [
        *(-0.980602, -0.794529, -0.638165, -0.500986, -0.377321, -0.263187, -0.155210, -0.050720),
        *(0.052541, 0.156985, 0.265284, 0.379533, 0.502636, 0.638953, 0.794876, 0.980671),
    ],
    np.float32,
)


def unpack(packed, bits=4):
    """Unpack the codes of a matrix. packed: uint8 [O, I bits / 8] -> uint8 [O, I]"""
    rows, width = packed.shape
    low = packed[:, : width * 4 // bits]
    codes = np.stack([low & 0xF, low >> 4], axis=-1).reshape(rows, -1)
    if bits == 6:
        high = packed[:, low.shape[1] :, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
        codes |= high.reshape(rows, -1) << 4
    return codes


def signed(codes):
    """Read codes of 4 bits as two's complement. codes: uint8 -> int8, -8 to 7"""
    return ((codes ^ np.uint8(8)) - np.uint8(8)).view(np.int8)


def levels(codes, scale, table=None, bits=4):
    """Return what each code stands for, times the scale of its group: int8 before it is rounded.

    codes: uint8 [O, I]
    scale: float32 [O, groups]
    table: float32 [16]; None: the code less 2^(bits - 1)
    -> y:  float32 [O, I], the product rounded to float32
    """
    values = codes.astype(np.float32) - np.float32(2 ** (bits - 1)) if table is None else table[codes]
    return values * np.repeat(scale, codes.shape[1] // scale.shape[1], axis=1)


def decode(codes, scale, table=None, bits=4):
    """Decode to the int8 that is multiplied.

        q = clip(round(table[code] scale), -127, 127), ties to even

    Arguments as in levels. -> int8 [O, I], exact
    Source: comfy_kitchen 0.2.40, backends/eager/w4a8_int8.py, _dequant_int4_grouped_to_int8.
    """
    return np.clip(np.rint(levels(codes, scale, table, bits)), -127, 127).astype(np.int8)


def encode(w, group=16, table=USUAL_TABLE):
    """Quantize a rotated matrix to codes of 4 bits.

    The scale of a group is fitted to its codes by least squares, in turn with them. Stored in F8_E4M3, beside the
    row's, it gives 16 numbers of int8, and each code is the nearest one's.

    w:  float32 [O, I]
    -> codes, scale, of_rows: uint8 [O, I], float32 [O, I / group], float32 [O]
    Source: comfy_kitchen 0.2.40, backends/eager/w4a8_int8.py, with a given table.
    """
    parts = w.reshape(len(w), -1, group)
    middles = (table[1:] + table[:-1]) / 2
    scale = np.maximum(np.abs(parts).max(axis=-1, keepdims=True), _LEAST)
    for _ in range(_FITS):
        y = table[np.searchsorted(middles, parts / scale)]
        square = np.maximum((y * y).sum(axis=-1, keepdims=True), _LEAST)
        scale = np.maximum((parts * y).sum(axis=-1, keepdims=True) / square, _LEAST)
    y = table[np.searchsorted(middles, parts / scale)] * scale
    of_rows = np.maximum(np.abs(y).max(axis=(1, 2)) / np.float32(127), _LEAST)
    inner = (scale[..., 0] / of_rows[:, None]).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    numbers = np.clip(np.rint(table * inner[..., None]), -127, 127)  # of each group's codes
    goal = parts / of_rows[:, None, None]
    codes = np.zeros(parts.shape, np.uint8)
    for code in range(len(table) - 1):
        codes += goal > (numbers[..., code, None] + numbers[..., code + 1, None]) / 2
    return codes.reshape(w.shape), inner, of_rows
