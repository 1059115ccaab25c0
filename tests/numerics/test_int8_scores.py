"""Attention whose scores are products of int8, as a part of a profile."""

from dataclasses import replace

import numpy as np
import pytest

from refsd.golden.operations import OPERATIONS
from refsd.golden.operations.attention_bounds import half_steps
from refsd.kernels.attention_int8 import attention_int8, codes_of_blocks
from refsd.kernels.products_f16 import products_f16
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT64, TORCH_BF16, TORCH_BF16_SAGE, TORCH_F16, TORCH_F16_SAGE, TORCH_F32
from refsd.numerics.quantization import Int8Scores
from refsd.numerics.tensor import stored


def _heads(D: int, arithmetic: Arithmetic, key_heads: int = 4):
    rng = np.random.default_rng(0)
    shapes = (2, 150, 4, D), (2, 70, key_heads, D), (2, 70, key_heads, D)
    q, k, v = (rng.standard_normal(shape) for shape in shapes)
    return tuple(arithmetic.store(x) for x in (q, k + 3 * rng.standard_normal(D), v))


@pytest.mark.jitted
@pytest.mark.parametrize("key_heads", [4, 2])
def test_it_is_the_kernel_with_sums_of_64_keys_in_float16(key_heads):
    a = Arithmetic(TORCH_F16_SAGE)
    q, k, v = (x.astype(np.float32) for x in _heads(64, a, key_heads))
    smooth = (k - k.mean(axis=1, keepdims=True)).astype(np.float16).astype(np.float32)
    expected = attention_int8(
        q, smooth, v, 0.125, 128, 64, smooth=False, matmul=lambda p, v: products_f16(p, v, run=64)
    )
    y = a.attention(*_heads(64, a, key_heads))
    np.testing.assert_array_equal(y, expected.astype(np.float16))
    exact = Arithmetic(FLOAT64).attention(q, k, v)
    assert 3e-3 < np.linalg.norm(y - exact) / np.linalg.norm(exact) < 3e-2


@pytest.mark.jitted
@pytest.mark.parametrize(("sage", "plain"), [(TORCH_F16_SAGE, TORCH_F16), (TORCH_BF16_SAGE, TORCH_BF16)])
@pytest.mark.parametrize(
    ("D", "more"),
    [(64, {"mask": np.zeros((1, 1, 1, 70))}), (64, {"diagonal": 0}), (64, {"sinks": np.zeros(4)}), (160, {})],
)
def test_what_the_kernels_do_not_take_is_computed_as_without_them(sage, plain, D, more):
    sage, plain = Arithmetic(sage), Arithmetic(plain)
    y, other = (a.attention(*_heads(D, a), **more) for a in (sage, plain))
    np.testing.assert_array_equal(y, other)


@pytest.mark.jitted
def test_blocks_of_tokens_and_the_mean_of_keys_are_fields():
    truth = Arithmetic(FLOAT64).attention(*_heads(64, Arithmetic(FLOAT64)))

    def error(scores: Int8Scores) -> float:
        a = Arithmetic(replace(TORCH_F32, scores=scores))
        return float(np.linalg.norm(a.attention(*_heads(64, a)) - truth))

    assert error(Int8Scores(1, 1)) < 0.9 * error(Int8Scores()) < 0.5 * error(Int8Scores(smooth=False))


def test_half_a_step_bounds_what_codes_lose_and_is_nearly_reached():
    x = np.random.default_rng(1).standard_normal((2, 150, 3, 32)).astype(np.float32)
    x *= 0.98 ** np.arange(150, dtype=np.float32)[:, None, None]
    for block in (1, 64, 128, 200):
        codes, scale = codes_of_blocks(x, block)
        lost = np.abs(codes.astype(np.float64) * scale - x).transpose(0, 2, 1, 3)
        limit = half_steps(x.transpose(0, 2, 1, 3).astype(np.float64), 0.0, block, 2.0**-24)
        assert 0.99 < (lost / limit).max() <= 1


@pytest.mark.parametrize("scores", [Int8Scores(), Int8Scores(32, 16, smooth=False)], ids=str)
def test_the_bound_of_attention_knows_what_codes_lose(scores):
    op, numerics = OPERATIONS["attention"], replace(TORCH_F32, scores=scores)
    tensors = zip("qkv", _heads(64, Arithmetic(TORCH_F32)), strict=True)
    inputs = {name: stored(np.asarray(x, np.float32)) for name, x in tensors}
    params = {**op.params, "scale": None}
    truth, y = (op.answer(Arithmetic(how), inputs, params) for how in (FLOAT64, numerics))
    error = np.abs(y - truth)
    assert (error <= op.bound_of(numerics, inputs, params, truth).limit).all()
    assert (error > op.bound_of(TORCH_F32, inputs, params, truth).limit).mean() > 0.9
