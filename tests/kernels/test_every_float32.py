"""The errors that the float32 functions claim, measured over every float32: `pytest -m slow -s` on this file.

Exact is the float64 function. An ULP is the distance of two float32 at the exact result's size. Arguments are taken
2^24 at a time, with a line of progress on stderr; each function takes a minute or two on two cores.
"""

import sys

import numpy as np
import pytest
from numba import prange

from refsd.kernels import activations
from refsd.kernels._jit import kernel
from refsd.kernels.erfc import erfc64, normal_tail32
from refsd.kernels.exponential import exp2_32_flushed, exp32, exp32_flushed, exp64

STEP = 1 << 24


@kernel(parallel=False)
def _exact_tail(a):
    return 0.5 * erfc64(a * 0.7071067811865476)


@kernel
def _ulps(y, exact, least, worst):
    """The largest error of each of worst.size parts, in ULPs, and where: NaN and infinity must be themselves."""
    part = y.size // worst.size
    at = np.zeros(worst.size, np.int64)
    for p in prange(worst.size):
        for i in range(p * part, (p + 1) * part):
            e = exact[i]
            if abs(e) < least or (e != e and y[i] != y[i]) or np.float32(e) == y[i]:
                continue
            exponent = max(((np.float64(e).view(np.int64) >> 52) & 2047) - 1023, -126)
            error = abs(y[i] - e) * np.int64((23 - exponent + 1023) << 52).view(np.float64)
            if not error <= worst[p]:
                worst[p], at[p] = error, i
    return at


@kernel
def _exp32(x, y):
    for i in prange(x.size):
        y[i] = exp32(x[i])


@kernel
def _exp32_flushed(x, y):
    for i in prange(x.size):
        y[i] = exp32_flushed(x[i])


@kernel
def _exp64(x, y):
    for i in prange(x.size):
        y[i] = exp64(x[i])


@kernel
def _exp2_32_flushed(x, y):
    for i in prange(x.size):
        y[i] = exp2_32_flushed(x[i])


@kernel
def _power64(x, y):
    for i in prange(x.size):
        y[i] = 2.0 ** x[i]


@kernel
def _normal_tail32(x, y):
    for i in prange(x.size):
        y[i] = normal_tail32(x[i])


@kernel
def _normal_tail64(x, y):
    for i in prange(x.size):
        y[i] = _exact_tail(x[i])


EVERYTHING = (0, 1 << 32)
NOT_POSITIVE = (1 << 31, 1 << 32)
TAIL = (0, int(np.float32(15).view(np.uint32)))
# name -> float32, float64, bits of the first argument and of the last + 1, least |y| that counts, ULPs
FUNCTIONS = {
    "exp32": (_exp32, _exp64, EVERYTHING, 0.0, 1.011),
    "exp32_flushed": (_exp32_flushed, _exp64, NOT_POSITIVE, 2.0**-125, 1.011),
    "exp2_32_flushed": (_exp2_32_flushed, _power64, NOT_POSITIVE, 2.0**-125, 0.952),
    "normal_tail32": (_normal_tail32, _normal_tail64, TAIL, 2e-36, 6.3),
    "silu": (activations._silu_each, activations._silu_each, EVERYTHING, 2e-36, 3.5),
    "gelu": (activations._gelu_each, activations._gelu_each, EVERYTHING, 2e-36, 6.43),
    "gelu_tanh": (activations._gelu_tanh_each, activations._gelu_tanh_each, EVERYTHING, 2e-36, 3.5),
    "quick_gelu": (activations._quick_gelu_each, activations._quick_gelu_each, EVERYTHING, 2e-36, 3.5),
}


def sweep(name, stride=1):
    """The largest error in ULPs over each stride-th chunk of arguments, and its argument."""
    single, double, (first, end), least, _ = FUNCTIONS[name]
    highest, where = 0.0, np.float32(0)
    for start in range(first, end, STEP * stride):
        bits = np.arange(start, min(start + STEP, end), dtype=np.uint32)
        x = np.resize(bits, STEP).view(np.float32)
        y, exact = np.empty_like(x), np.empty(STEP)
        single(x, y)
        with np.errstate(invalid="ignore"):
            double(x.astype(np.float64), exact)
        # Beyond float32's range infinity is right; a difference of infinities would say nothing.
        exact[np.abs(exact) > 3.4028235677973366e38] = np.inf
        # At -inf one formula's infinity times zero is NaN, another's is the limit: nothing is claimed.
        exact[np.isneginf(x) & np.isnan(exact)] = 0.0
        worst = np.zeros(64)
        at = _ulps(y, exact, least, worst)
        part = int(worst.argmax())
        if not worst[part] <= highest:
            highest, where = float(worst[part]), x[at[part]]
        share = (start - first) / (end - first)
        print(f"\r{name}: {share:4.0%}, worst {highest:.4f} ULP at {where!r}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return highest, where


@pytest.mark.slow
@pytest.mark.jitted
@pytest.mark.parametrize("name", FUNCTIONS)
def test_over_every_float32(name):
    highest, where = sweep(name)
    assert highest <= FUNCTIONS[name][-1], where
