"""Products that are added up in a small type, in blocks of any size, are named; rounded factors are told apart."""

import ml_dtypes
import numpy as np
import pytest
from naming import named

pytestmark = pytest.mark.jitted


def _values(inputs, *names):
    return (inputs[name].values().astype(np.float64) for name in names)


def _in_blocks(dtype, block, reverse=False):
    """The sum is rounded after each block of terms, from the row's end on if it is reversed."""

    def wrong(op, inputs, params):
        x, w, b = _values(inputs, "x", "weight", "bias")
        total = np.zeros((*x.shape[:-1], len(w)))
        starts = range(0, x.shape[-1], block)
        for k in reversed(starts) if reverse else starts:
            total = (total + x[..., k : k + block] @ w[:, k : k + block].T).astype(dtype).astype(np.float64)
        return total + b

    return wrong


def _of_pixels(op, inputs, params):
    """1x1 filters; each four channels are added up exactly."""
    x, w, b = _values(inputs, "x", "weight", "bias")
    total = np.zeros((x.shape[0], len(w), *x.shape[2:]), np.float16)
    for c in range(0, x.shape[1], 4):
        total = (total + np.einsum("nchw,kc->nkhw", x[:, c : c + 4], w[:, c : c + 4, 0, 0])).astype(np.float16)
    return total + b[:, None, None]


def _rounded_once(op, inputs, params):
    x, w, b = _values(inputs, "x", "weight", "bias")
    return (x.astype(ml_dtypes.bfloat16).astype(np.float64) @ w.T).astype(np.float16) + b


@pytest.mark.parametrize(
    ("case", "wrong", "words"),
    [
        ("linear/f32/tokens-x77x320-o33", _in_blocks(np.float16, 24, reverse=True), "products added up in float16"),
        ("linear/f32/awkward-x2x33x77-o20", _in_blocks(ml_dtypes.bfloat16, 5), "products added up in bfloat16"),
        ("conv2d/f32/1x1-n2-c77-k33-h5-w6", _of_pixels, "products added up in float16"),
        (
            "linear/f32/tokens-x77x320-o33",
            _rounded_once,
            "sums rounded to float16 before a bias is added, x to bfloat16",
        ),
    ],
)
def test_the_type_of_sums(case, wrong, words):
    assert named(case, wrong)[0] == words


def test_rough_numbers_of_a_small_type_are_no_sums_of_it():
    """Factors in a few bits, farther off than all roundings of the sums."""

    def wrong(op, inputs, params):
        x, w, b = _values(inputs, "x", "weight", "bias")
        return (x @ w.astype(ml_dtypes.float8_e4m3fn).astype(np.float64).T).astype(np.float16) + b

    assert named("linear/f32/tokens-x77x320-o33", wrong) == []
