"""Softmax over the last axis."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.exponential import exp_flushed

_LANES = 64  # partial maxima and sums, in a fixed order, but independent, so that they map to vector lanes
_ROWS = 16  # rows in a thread's task


@kernel(parallel=False)
def _highest(lanes):
    for width in (32, 16, 8, 4, 2, 1):
        for i in range(width):
            lanes[i] = lanes[i + width] if lanes[i + width] > lanes[i] else lanes[i]
    return lanes[0]


@kernel(parallel=False)
def _sum(lanes):
    for width in (32, 16, 8, 4, 2, 1):
        for i in range(width):
            lanes[i] += lanes[i + width]
    return lanes[0]


@kernel
def _rows(x, sinks, y):
    M, L = x.shape
    some = sinks.size - 1
    zero, one, nothing = x.dtype.type(0.0), x.dtype.type(1.0), x.dtype.type(-np.inf)
    steps = L // _LANES
    done = steps * _LANES
    for task in prange((M + _ROWS - 1) // _ROWS):
        lanes = np.empty(_LANES, x.dtype)
        for m in range(task * _ROWS, min(M, (task + 1) * _ROWS)):
            sink = sinks[min(m, some)]
            for i in range(_LANES):
                lanes[i] = sink
            for step in range(steps):
                for i in range(_LANES):
                    s = x[m, step * _LANES + i]
                    lanes[i] = s if s > lanes[i] else lanes[i]
            for i in range(L - done):
                s = x[m, done + i]
                lanes[i] = s if s > lanes[i] else lanes[i]
            peak = _highest(lanes)
            # A completely masked row has no maximum; any base will do, as its sum is zero.
            base = peak if peak > nothing else zero

            for j in range(L):
                y[m, j] = exp_flushed(x[m, j] - base)
            for i in range(_LANES):
                lanes[i] = zero
            for step in range(steps):
                for i in range(_LANES):
                    lanes[i] += y[m, step * _LANES + i]
            for i in range(L - done):
                lanes[i] += y[m, done + i]
            total = _sum(lanes) + exp_flushed(sink - base)
            divisor = total if total != zero else one
            for j in range(L):
                y[m, j] = y[m, j] / divisor


def softmax(x):
    """Turn each row of scores into weights that sum to one.

        y_j = exp(x_j - max x) / sum_k exp(x_k - max x)

    x:    [M, L], contiguous; -inf masks an entry
    -> y: [M, L], dtype of x; a completely masked row gives zeros

    exp and the sum, in 64 partial sums, are computed in the dtype of x.
    Source: torch.nn.functional.softmax and ggml_soft_max (which give NaN for a completely masked row).
    """
    y = np.empty_like(x)
    _rows(x, np.full(1, -np.inf, x.dtype), y)
    return y


def softmax_sinks(x, sinks):
    """Compute a softmax with one more score in each row, the sink, whose weight is not returned.

        y_j = exp(x_j - m) / (exp(sink - m) + sum_k exp(x_k - m)),  m = max(sink, max x)

    x:     [M, L], contiguous; -inf masks an entry
    sinks: [M], or [1] for all rows, dtype of x; -inf means no sink
    -> y:  [M, L], dtype of x. Its rows sum to less than one; a completely masked row gives zeros.

    Accumulates like softmax.
    Source: Xiao et al. 2023, Efficient Streaming Language Models with Attention Sinks, section 3.3; gpt-oss;
    ggml_soft_max_add_sinks.
    """
    y = np.empty_like(x)
    _rows(x, sinks, y)
    return y
