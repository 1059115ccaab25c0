"""Philox4x32-10: random words that are a pure function of a counter and a key."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel

# All constants are unsigned, because Numba adds a signed and an unsigned integer in float64.
_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_M0 = np.uint64(0xD2511F53)
_M1 = np.uint64(0xCD9E8D57)
_W0 = np.uint64(0x9E3779B9)
_W1 = np.uint64(0xBB67AE85)
_RUN = 1024


@kernel(parallel=False)
def _rounds(c0, c1, c2, c3, key):
    k0, k1 = key & _MASK, key >> _HALF
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _MASK, (p0 >> _HALF) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


@kernel
def philox4x32_10(counters, key):
    """Apply ten Philox rounds to each counter.

        (c0, c1, c2, c3) <- (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)), ten times,
        (k0, k1) <- (k0 + W0, k1 + W1) between two rounds;  k = (key low, key high)

    counters: uint32 [count, 4]
    key:      uint64
    -> words: uint32 [count, 4]

    Integers only: the same bits on every machine.
    Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", section 3.3.
    """
    words = np.empty(counters.shape, np.uint32)
    for i in prange(len(counters)):
        c0, c1 = np.uint64(counters[i, 0]), np.uint64(counters[i, 1])
        c2, c3 = np.uint64(counters[i, 2]), np.uint64(counters[i, 3])
        words[i, 0], words[i, 1], words[i, 2], words[i, 3] = _rounds(c0, c1, c2, c3, key)
    return words


@kernel
def philox_successive(first, count, seed, key):
    """Apply philox4x32_10 to `count` successive counters c = (index low, index high, seed low, seed high).

    first:    uint64, index of the first counter
    count:    number of counters
    seed:     uint64, upper half of every counter
    key:      uint64
    -> words: uint32 [count, 4]
    """
    words = np.empty((count, 4), np.uint32)
    for run in prange((count + _RUN - 1) // _RUN):
        begin = run * _RUN
        size = min(_RUN, count - begin)
        # A row for each word of a counter: with their words side by side, counters are not computed in vectors.
        rows = np.empty((4, _RUN), np.uint32)
        _successive_rows(first + np.uint64(begin), size, seed, key, rows)
        for i in range(size):
            for word in range(4):
                words[begin + i, word] = rows[word, i]
    return words


@kernel
def bell_values(seed, key, scale, offset, values):
    """Fill `values` from the words of successive counters, beginning with 0: two words a value.

        value = scale (sum of the words' four halves - 131070) + offset

    seed, key:     uint64, as for philox_successive
    scale, offset: float32
    values:        float32 [n], written

    The sum is nearly normal, with a standard deviation of 37837.2. It is exact in float32, as its product with a
    power of two is, so that a value is rounded once.
    """
    count = (len(values) + 1) // 2
    for run in prange((count + _RUN - 1) // _RUN):
        begin = run * _RUN
        size = min(_RUN, count - begin)
        rows = np.empty((4, _RUN), np.uint32)
        _successive_rows(np.uint64(begin), size, seed, key, rows)
        for i in range(min(size, len(values) // 2 - begin)):
            values[2 * (begin + i)] = np.float32(_bell(rows[0, i], rows[1, i])) * scale + offset
            values[2 * (begin + i) + 1] = np.float32(_bell(rows[2, i], rows[3, i])) * scale + offset
        if 2 * (begin + size) > len(values):
            values[-1] = np.float32(_bell(rows[0, size - 1], rows[1, size - 1])) * scale + offset


@kernel(parallel=False)
def _bell(a, b):
    low = np.int32(a & np.uint32(0xFFFF)) + np.int32(b & np.uint32(0xFFFF))
    return low + np.int32(a >> np.uint32(16)) + np.int32(b >> np.uint32(16)) - np.int32(131070)


@kernel(parallel=False)
def _successive_rows(first, size, seed, key, rows):
    for i in range(size):
        index = first + np.uint64(i)
        c0, c1, c2, c3 = _rounds(index & _MASK, index >> _HALF, seed & _MASK, seed >> _HALF, key)
        rows[0, i], rows[1, i], rows[2, i], rows[3, i] = c0, c1, c2, c3
