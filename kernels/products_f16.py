"""Matrix products whose sums accumulate in float16."""

import numpy as np
from numba import prange

from refsd.kernels._jit import kernel
from refsd.kernels.attention_online_f16 import round_to_f16


@kernel
def _rows(a, b, step, run, y):
    """y[m, n] = sum_k a[m, k] b[k, n]; see products_f16. a [M, K], b [K, N], y [M, N], float32"""
    M, K = a.shape
    N = b.shape[1]
    for m in prange(M):
        exact = np.zeros(N, np.float32)
        half = np.zeros(N, np.float32)
        total = np.zeros(N, np.float32)
        for k in range(K):
            for n in range(N):
                exact[n] += a[m, k] * b[k, n]
            last = k == K - 1 or (k + 1) % run == 0
            if last or (k % run + 1) % step == 0:
                for n in range(N):
                    half[n] = round_to_f16(half[n] + exact[n])
                    exact[n] = np.float32(0.0)
            if last:
                for n in range(N):
                    total[n] += half[n]
                    half[n] = np.float32(0.0)
        for n in range(N):
            y[m, n] = total[n]


def products_f16(a, b, out=None, *, step=1, run=0):
    """Multiply matrices as np.matmul does, with sums in float16.

        s = f16(s + a[m, k] b[k, n] + ... of `step` terms);   y[m, n] = the sum of every run's s, in float32

    a:    [..., M, K], rounded to float16
    b:    [..., K, N], rounded to float16
    step: terms that are added up in float32 before each rounding: 1 in a loop of float16 instructions, 16 in a
          tensor core's product of 16x8x16
    run:  terms after which the float16 sum is added to the float32 one and begins at 0 again; 0: never
    -> y: [..., M, N], float32, infinite where a sum leaves float16's range; written to `out` if given

    Source: NVIDIA PTX ISA, mma.m16n8k16 with .f16 accumulators; torch.backends.cuda.matmul.allow_fp16_accumulation.
    """
    a, b = (np.asarray(t, np.float16).astype(np.float32) for t in (a, b))
    K = a.shape[-1]
    stack = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    y = np.empty((*stack, a.shape[-2], b.shape[-1]), np.float32) if out is None else out
    a, b = np.broadcast_to(a, (*stack, *a.shape[-2:])), np.broadcast_to(b, (*stack, *b.shape[-2:]))
    for i in np.ndindex(*stack):
        part = np.empty(y.shape[-2:], np.float32)
        _rows(np.ascontiguousarray(a[i]), np.ascontiguousarray(b[i]), step, run or max(K, 1), part)
        y[i] = part
    return y
