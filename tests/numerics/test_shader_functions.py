"""exp of a graphics processor, and what shaders make of it, against their bounds."""

import numpy as np
import pytest

from refsd.golden import operations
from refsd.golden.operations.activations import of_shader
from refsd.kernels.relu import relu
from refsd.kernels.sigmoid import sigmoid
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64, GGML_VULKAN_F32, TORCH_F32
from refsd.numerics.shader_functions import exp_error, in_a_shader
from refsd.numerics.tensor import stored

X = np.concatenate([np.linspace(-80, 80, 4001), np.logspace(-8, 0, 200), -np.logspace(-8, 0, 200)]).astype(
    np.float32
)
U = 2.0**-24


def judged(op, numerics, by):
    """The largest error of an operation under `numerics`, in units of the bound of `by`."""
    inputs = {"x": stored(X)}
    truth = operations.run(op, Arithmetic(FLOAT64), inputs, {})["y"]
    y = operations.run(op, Arithmetic(numerics), inputs, {})["y"]
    return float((np.abs(y - truth) / operations.bound(op, by, inputs, {}, truth).limit).max())


@pytest.mark.parametrize("op", ["silu", "sigmoid", "tanh"])
def test_a_shader_stays_within_its_bound_and_leaves_a_librarys(op):
    assert judged(op, GGML_VULKAN_F32, GGML_VULKAN_F32) < 1
    assert judged(op, GGML_VULKAN_F32, TORCH_F32) > 2
    assert judged(op, TORCH_F32, GGML_VULKAN_F32) < 1


def test_exp_is_within_the_standards_error():
    e = in_a_shader(sigmoid)(-X).astype(np.float64)  # 1 / (1 + exp(x)): exp(-x) itself far from 0
    far = X > 30
    truth = np.exp(-X[far].astype(np.float64))
    assert (np.abs(e[far] / truth - 1) <= U * (exp_error(X[far]) + 6)).all()


def test_other_kernels_are_left_alone():
    assert in_a_shader(relu) is relu


def test_the_bound_grows_where_exp_counts():
    y = np.ones(2)
    near, far = of_shader(U, np.array([40.0, -40.0]), y) / U
    assert near < 6 and far > 100
