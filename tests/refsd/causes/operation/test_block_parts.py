"""Block types put together again from their parts, and with one part read otherwise."""

import numpy as np
import pytest

from refsd.causes.operation.block_parts import parts_of, wrong_values
from refsd.golden.recipe import Recipe, realize
from refsd.kernels.quant import BLOCK_TYPES

TYPES = (
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "iq4_nl",
    "iq4_xs",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "mxfp4",
    "nvfp4",
)


@pytest.mark.parametrize("type", TYPES)
def test_the_parts_give_the_values(type):
    tensor = realize(Recipe((5, 512), type), "x")
    parts = parts_of(type, tensor.data.reshape(-1, BLOCK_TYPES[type].bytes))
    assert parts is not None
    np.testing.assert_array_equal(parts.values().reshape(5, 512).astype(np.float32), tensor.values())


@pytest.mark.parametrize("type", TYPES)
def test_no_wrong_reading_is_the_right_one_and_few_are_alike(type):
    tensor = realize(Recipe((5, 512), type), "x")
    wrong = dict(wrong_values(tensor))
    assert len(wrong) >= 10
    assert all(name.startswith(f"{type}: ") for name in wrong)
    assert not any(np.array_equal(y, tensor.values()) for y in wrong.values())
    assert len({y.tobytes() for y in wrong.values()}) > 0.6 * len(wrong)


def test_a_type_without_parts_gives_nothing():
    assert list(wrong_values(realize(Recipe((2, 256), "iq2_xs"), "x"))) == []
    assert list(wrong_values(realize(Recipe((2, 256), "f16"), "x"))) == []


def _told(type, found):
    """Return what is said of the same values. found: bytes with sign, int64 [n, bytes] -> values"""
    tensor = realize(Recipe((5, 512), type), "x")
    y = found(tensor.data.reshape(-1, BLOCK_TYPES[type].bytes).view(np.int8).astype(np.int64))
    wrong = wrong_values(tensor)
    return [name for name, values in wrong if np.allclose(values.ravel(), y.ravel(), rtol=1e-6, equal_nan=True)]


def _scale(b, at):
    return (b[:, at : at + 2] & 255).astype(np.uint8).view(np.float16).astype(np.float64)


def test_codes_out_of_signed_bytes():
    """The fourth codes of Q2_K, of bits 6 and 7, without a mask."""

    def q2_k(b):
        codes = np.stack([b[:, 16:80].reshape(-1, 2, 32) >> shift & 3 for shift in (0, 2, 4)], 2)
        codes = np.concatenate([codes, b[:, 16:80].reshape(-1, 2, 1, 32) >> 6], 2).reshape(len(b), 256)
        d, m = (np.repeat(_scale(b, at) * s, 16, 1) for at, s in ((80, b[:, :16] & 15), (82, b[:, :16] >> 4 & 15)))
        return d * codes - m

    assert _told("q2_k", q2_k) == ["q2_k: codes shifted out of signed bytes: the topmost bit is a sign"]


def test_minimums_out_of_signed_bytes():
    def q2_k(b):
        codes = (b[:, 16:80].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6])[:, None] & 3).reshape(len(b), 256)
        d, m = (np.repeat(_scale(b, at) * s, 16, 1) for at, s in ((80, b[:, :16] & 15), (82, b[:, :16] >> 4)))
        return d * codes - m

    assert _told("q2_k", q2_k) == [
        "q2_k: the groups' minimums shifted out of signed bytes: the topmost bit is a sign"
    ]


@pytest.mark.parametrize(("join", "says"), [(np.add, "added as a signed"), (np.bitwise_or, "or-ed as a signed")])
def test_a_scale_out_of_signed_bytes(join, says):
    def q8_0(b):
        bits = join(b[:, :1], (b[:, 1:2] & 255) << 8).astype(np.uint16)
        return bits.view(np.float16).astype(np.float64) * b[:, 2:]

    (told,) = _told("q8_0", q8_0)
    assert told.startswith("q8_0: d: the lower byte") and says in told


def test_scales_of_the_first_block_of_four():
    def q8_0(b):
        return np.repeat(_scale(b, 0)[::4], 4, 0) * b[:, 2:]

    assert "q8_0: scales of the first of each 4 blocks" in _told("q8_0", q8_0)


@pytest.mark.parametrize(("factor", "says"), [(0.5, "halved"), (8.0, "8 times too large")])
def test_subnormal_scales_by_a_power_of_two(factor, says):
    tensor = realize(Recipe((5, 512), "q4_0", exponent=-28), "x")
    blocks = tensor.data.reshape(-1, BLOCK_TYPES["q4_0"].bytes)
    d = np.repeat(_scale(blocks.astype(np.int64), 0), 32, 1)
    small = np.abs(d) < 2.0**-14
    assert small.any()
    y = np.where(small, factor, 1.0).ravel() * tensor.values().ravel()
    assert [n for n, v in wrong_values(tensor) if np.array_equal(v.ravel(), y)] == [
        f"q4_0: subnormal scales {says}"
    ]
