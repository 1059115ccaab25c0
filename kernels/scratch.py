"""Memory that a kernel writes over at every call.

A large array that is made anew costs a page fault for every page, often more time than the
arithmetic on it. What is kept here is bounded by the largest blocks that the kernels ask for.
"""

import math
import threading

import numpy as np

_kept = threading.local()
_LINE = 64  # bytes of a cache line: a vector that lies across two is read twice


def scratch(name, shape, dtype):
    """An uninitialised array, valid until the same thread asks for `name` again.

    -> [shape], contiguous, its first element at the beginning of a cache line
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    buffers = _kept.__dict__
    if name not in buffers or buffers[name].size < size:
        raw = np.empty(size + _LINE, np.uint8)
        buffers[name] = raw[-raw.ctypes.data % _LINE :][:size]
    return buffers[name][:size].view(dtype).reshape(shape)
