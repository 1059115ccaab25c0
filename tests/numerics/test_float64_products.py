"""Large products of float64 go by the microkernel: as exact as BLAS, and the same bits on one core and on two."""

import numba
import numpy as np
import pytest

from refsd.kernels.attention import attention
from refsd.kernels.conv2d_im2col import conv2d_im2col
from refsd.kernels.linear import linear
from refsd.module import Module, WeightCache
from refsd.numerics import arithmetic
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.jitted
RNG = np.random.default_rng(0)


def drawn(*shape):
    return RNG.standard_normal(shape)


def heads(length, count, size):
    return drawn(2, length, count, size)


# The simple kernel, and the arguments that it and the method take.
PRODUCTS = {
    "linear": (linear, (drawn(2, 150, 71), drawn(64, 71), drawn(64))),
    "conv2d": (conv2d_im2col, (drawn(2, 15, 21, 27), drawn(38, 15, 3, 3), drawn(38), 1, (1, 0, 1, 2))),
    "attention": (attention, (heads(70, 6, 24), heads(130, 3, 24), heads(130, 3, 40), 0.1)),
}


@pytest.fixture(autouse=True)
def smaller(monkeypatch):
    monkeypatch.setattr(arithmetic, "_LARGE", 1 << 20)


@pytest.mark.parametrize("name", PRODUCTS)
def test_as_exact_as_blas_on_any_number_of_threads(name):
    simple, arguments = PRODUCTS[name]
    compute, expected = getattr(Arithmetic(FLOAT64), name), simple(*arguments)
    y = compute(*arguments)
    assert not np.array_equal(y, expected), "BLAS computed it"
    assert np.linalg.norm(y - expected) <= 2e-15 * np.linalg.norm(expected)
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        np.testing.assert_array_equal(compute(*arguments), y)
    finally:
        numba.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "held", "padding"),
    [("linear", "layer.weight in panels", {}), ("conv2d", "layer.weight for packed", {"padding": 1})],
)
def test_a_kept_weight_gives_the_same_bits(name, held, padding):
    x, weight, bias = PRODUCTS[name][1][:3]
    tensors = {"layer.weight": stored(weight.astype(np.float32)), "layer.bias": stored(bias.astype(np.float32))}
    once, kept = (
        Module(tensors, Arithmetic(FLOAT64)),
        Module(tensors, Arithmetic(FLOAT64), cache=WeightCache(2**30)),
    )
    y = getattr(kept, name)("layer", x, **padding)
    assert held in kept.cache._arrays
    np.testing.assert_array_equal(getattr(once, name)("layer", x, **padding), y)
