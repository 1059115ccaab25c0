"""The limit: multiplications are counted as the algorithms make them, and rates are what was done per second."""

import os
import subprocess
import sys

import numpy as np
import pytest

from refsd.bench import limit
from refsd.bench.environment import without_avx512
from refsd.kernels.conv2d_fast import Choice, prepare
from refsd.numerics.profiles import FLOAT32

pytestmark = pytest.mark.jitted


def zeros(*shape):
    return np.zeros(shape, np.float32)


def counted(run):
    arithmetic = limit.CountedArithmetic(FLOAT32)
    run(arithmetic)
    return arithmetic.multiplications


def test_linear_and_attention():
    assert counted(lambda a: a.linear(zeros(2, 5, 7), zeros(3, 7))) == 2 * 5 * 7 * 3
    q, k, v = zeros(2, 5, 4, 8), zeros(2, 6, 2, 8), zeros(2, 6, 2, 3)
    assert counted(lambda a: a.attention(q, k, v)) == 2 * 4 * 5 * 6 * (8 + 3)


def test_a_convolution_counts_its_own_algorithm():
    few = zeros(2, 3, 9, 11), zeros(5, 3, 3, 3), zeros(5)
    assert counted(lambda a: a.conv2d(*few, stride=2, padding=(1, 1, 1, 1))) == 2 * 5 * 3 * 9 * (5 * 6)
    many = zeros(1, 32, 30, 33), zeros(40, 32, 3, 3), zeros(40)
    winograd = 40 * 32 * (8 * 9) * 36  # tiles of 4x4 that cover 30x33
    assert counted(lambda a: a.conv2d(*many, padding=(1, 1, 1, 1))) == winograd

    filters = prepare(many[1], Choice("winograd2", "", 2))
    assert counted(lambda a: a.conv2d(many[0], filters, many[2], padding=(1, 1, 1, 1))) == 40 * 32 * (15 * 17) * 16


def test_the_rates_count_what_was_done(monkeypatch):
    monkeypatch.setattr(limit, "_BLOCKS", 10)
    monkeypatch.setattr(limit, "_BYTES", 1 << 20)
    seen = []
    monkeypatch.setattr(limit, "_multiply", lambda a, b, y, times: seen.append((a.shape, y.shape, times)))
    monkeypatch.setattr(limit, "_fastest", lambda run: (run(), 0.5)[1])
    rate = limit.multiplications_per_second()
    (terms, rows), (threads, _, width), times = seen[-1]
    assert times == 10 and rate == threads * times * terms * rows * width / 0.5
    assert limit.bytes_per_second() == 2 * (1 << 20) / 0.5


@pytest.mark.skipif(not without_avx512()["NUMBA_CPU_FEATURES"].count("+avx2"), reason="a CPU without AVX2")
def test_without_avx512_the_microkernel_takes_the_narrow_block():
    code = """
import numba, numpy as np
from refsd.kernels.microkernel import ROWS, lanes, product
a, b = np.arange(3.0 * ROWS).reshape(3, ROWS), np.arange(3.0 * lanes("f8")).reshape(3, -1)
y = np.zeros((ROWS, lanes("f8")))
numba.njit(lambda a, b, y: product(a, b, y))(a, b, y)
print(ROWS, lanes("f4"), np.array_equal(y, a.T @ b))
"""
    environment = {**os.environ, **without_avx512()}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["6", "16", "True"]
