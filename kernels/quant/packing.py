"""Pack codes of a few bits into the bytes of a block."""

import numpy as np


def split_nibbles(codes):
    """Pack the low 4 bits of 32 codes; the first 16 become low nibbles. uint8 [n, 32] -> [n, 16]"""
    return codes[:, :16] & 0xF | codes[:, 16:] << 4


def bits(codes, bit):
    """Pack one bit of each code: bit j of byte k belongs to code 8 k + j. uint8 [n, k] -> [n, k / 8]"""
    return np.packbits(codes >> bit & 1, axis=1, bitorder="little")


def two_bit_planes(codes):
    """Pack 2-bit codes as Q2_K and Q3_K do: bits 2k, 2k+1 of byte j of 32 are code 32 k + j of 128.

    uint8 [n, 256] -> [n, 64]
    """
    planes = codes.reshape(-1, 2, 4, 32)
    return (planes[:, :, 0] | planes[:, :, 1] << 2 | planes[:, :, 2] << 4 | planes[:, :, 3] << 6).reshape(-1, 64)


def nibble_pairs(codes):
    """Pack 4-bit codes as Q4_K and Q5_K do: of 64, the first 32 become low nibbles. uint8 [n, 256] -> [n, 128]"""
    pairs = codes.reshape(-1, 4, 2, 32)
    return (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)


def six_bit_pairs(scales, minimums):
    """Pack eight 6-bit scales and minimums into 12 bytes by the map in q4_k.py. uint8 [n, 8] twice -> [n, 12]"""
    low_scales, high_scales, low_minimums, high_minimums = (
        scales[:, :4],
        scales[:, 4:],
        minimums[:, :4],
        minimums[:, 4:],
    )
    first = low_scales | high_scales >> 4 << 6
    second = low_minimums | high_minimums >> 4 << 6
    third = high_scales & 0xF | high_minimums << 4
    return np.concatenate([first, second, third], axis=1)
