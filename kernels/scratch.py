"""Buffers that kernels reuse from call to call.

A newly allocated large array costs a page fault for every page, which often takes longer than the
arithmetic on it. The memory kept here is bounded by the largest blocks that kernels request.
"""

import math
import threading

import numpy as np

from refsd.kernels._jit import kernel

_kept = threading.local()
_LINE = 64  # bytes of a cache line: a vector that lies across two is read twice


def scratch(name, shape, dtype):
    """Return an uninitialised array, valid until the same thread requests `name` again.

    -> [shape], contiguous, aligned to a cache line
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    buffers = _kept.__dict__
    if name not in buffers or buffers[name].size < size:
        buffers[name] = aligned((size,), np.uint8)
    return buffers[name][:size].view(dtype).reshape(shape)


def aligned(shape, dtype):
    """Return a new uninitialised array. -> [shape], contiguous, aligned to a cache line"""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + _LINE, np.uint8)
    return raw[-raw.ctypes.data % _LINE :][:size].view(dtype).reshape(shape)


@kernel(parallel=False)
def aligned_like(n, like):
    """Allocate n numbers inside a kernel, aligned to a cache line. -> [n], dtype of like"""
    a = np.empty(n + _LINE // 4, like.dtype)
    skip = (_LINE - a.ctypes.data % _LINE) % _LINE // like.itemsize
    return a[skip : skip + n]
