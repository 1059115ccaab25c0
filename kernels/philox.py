"""Philox4x32-10: random words that are a pure function of a counter and a key."""

import numba
import numpy as np

from refsd.kernels._jit import kernel

# Numba adds a signed and an unsigned integer in float64, hence unsigned constants everywhere.
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0 = np.uint64(0xD2511F53)
_M1 = np.uint64(0xCD9E8D57)
_W0 = np.uint64(0x9E3779B9)
_W1 = np.uint64(0xBB67AE85)


@kernel
def philox4x32_10(first, count, seed, key):
    """Ten Philox rounds on each of `count` successive counters.

        (c0, c1, c2, c3) <- (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)), ten times,
        (k0, k1) <- (k0 + W0, k1 + W1) between two rounds
        c = (index low, index high, seed low, seed high), k = (key low, key high)

    first:    uint64, index of the first counter
    count:    number of counters
    seed:     uint64, upper half of every counter
    key:      uint64
    -> words: uint32 [count, 4]

    Integers only: the same bits on every machine.
    Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3.
    """
    words = np.empty((count, 4), np.uint32)
    for i in numba.prange(count):
        index = first + np.uint64(i)
        c0, c1 = index & _MASK, index >> _HALF
        c2, c3 = seed & _MASK, seed >> _HALF
        k0, k1 = key & _MASK, key >> _HALF
        for _ in range(10):
            p0, p1 = _M0 * c0, _M1 * c2
            c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _MASK, (p0 >> _HALF) ^ c3 ^ k1, p0 & _MASK
            k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
        words[i, 0], words[i, 1], words[i, 2], words[i, 3] = c0, c1, c2, c3
    return words
