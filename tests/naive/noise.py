"""The generators of engines, one number at a time in Python's integers."""

import math


def philox4x32(counter, key):
    """Ten rounds on one counter of four words, with a key of two (Salmon et al. 2011, figure 2)."""
    r0, l0, r1, l1 = counter
    k0, k1 = key
    for n in range(10):
        bump0, bump1 = (k0 + n * 0x9E3779B9) % 2**32, (k1 + n * 0xBB67AE85) % 2**32
        hi0, lo0 = divmod(r0 * 0xD2511F53, 2**32)
        hi1, lo1 = divmod(r1 * 0xCD9E8D57, 2**32)
        r0, l0, r1, l1 = hi1 ^ l0 ^ bump0, lo1, hi0 ^ l1 ^ bump1, lo0
    return r0, l0, r1, l1


def philox_normal(seed, call, element):
    """Box-Muller's sine half of the centres of 2^32 cells, in float64 throughout."""
    g0, g1, _, _ = philox4x32((call, 0, element, 0), (seed % 2**32, seed // 2**32))
    return math.sqrt(-2 * math.log((g0 + 0.5) / 2**32)) * math.sin(2 * math.pi * (g1 + 0.5) / 2**32)


def mersenne(seed):
    """mt19937's words, by its recurrence: x[k + 624] = x[k + 397] ^ (upper(x[k]) | lower(x[k + 1])) A."""
    x = [seed % 2**32]
    for j in range(1, 624):
        x.append((1812433253 * (x[-1] ^ (x[-1] >> 30)) + j) % 2**32)
    while True:
        y = (x[0] & 0x80000000) + (x[1] & 0x7FFFFFFF)
        x.append(x[397] ^ (y >> 1) ^ (0x9908B0DF if y % 2 else 0))
        x.pop(0)
        z = x[-1]
        z ^= z >> 11
        z ^= (z << 7) & 0x9D2C5680
        z ^= (z << 15) & 0xEFC60000
        yield z ^ (z >> 18)
