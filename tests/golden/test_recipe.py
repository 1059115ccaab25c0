import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive import recipe as naive

from refsd.golden import recipe as recipes
from refsd.golden.block_scales import scales_fit
from refsd.golden.recipe import DATA_SETS, SCALE_FIELDS, Recipe, key_of, realize
from refsd.kernels.philox import philox_successive
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import SCALAR_TYPES

README = Path(recipes.__file__).with_name("README.md")
ONES = 0xFFFFFFFF
# Random123 1.14, tests/kat_vectors, "philox4x32 10".
KNOWN = [
    ([0, 0, 0, 0], [0, 0], "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ([ONES] * 4, [ONES] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
BLOCKS = sorted(set(SCALE_FIELDS) & set(BLOCK_TYPES))


def hexes(words) -> str:
    return " ".join(f"{int(w):08x}" for w in words)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(counter, key, expected):
    join = lambda pair: np.uint64(pair[0] | pair[1] << 32)
    assert hexes(philox_successive(join(counter[:2]), 1, join(counter[2:]), join(key))[0]) == expected
    assert hexes(naive.philox(counter, key)) == expected
    assert expected in README.read_text()


def test_philox_counts_past_32_bits():
    words = philox_successive(np.uint64(2**32 - 1), 2, np.uint64(5 << 32 | 7), np.uint64(3))
    assert hexes(words[0]) == hexes(naive.philox([ONES, 0, 7, 5], [3, 0]))
    assert hexes(words[1]) == hexes(naive.philox([0, 1, 7, 5], [3, 0]))


# Landon Curt Noll's test vectors of FNV-1a, and UTF-8.
@pytest.mark.parametrize(
    ("name", "key"),
    [("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C), ("foobar", 0x85944171F73967E8)],
)
def test_key_known_answers(name, key):
    assert key_of(name) == naive.fnv1a(name) == key


@given(st.text(max_size=12))
def test_key_is_of_the_utf8_bytes(name):
    assert key_of(name) == naive.fnv1a(name)


@given(
    data=st.sampled_from(sorted(DATA_SETS)),
    type=st.sampled_from(["f32", "f16", "bf16", "f64"]),
    shape=st.sampled_from([(11,), (3, 5), (2, 9, 2, 3), (2, 3, 8), ()]),
    exponent=st.integers(-30, -15),
    offset=st.sampled_from([0.0, 1.0, -0.1, 3e-6]),
    seed=st.integers(0, 2**64 - 1),
)
def test_scalars_are_those_of_the_specification(data, type, shape, exponent, offset, seed):
    recipe = Recipe(shape, type, data, exponent, offset, seed, n=1000)
    made = realize(recipe, "some/näme")
    assert (made.type, made.shape, made.data.shape, made.data.dtype) == (type, shape, shape, SCALAR_TYPES[type])
    shape_or_one = shape or (1,)
    for e, value in enumerate(made.data.reshape(-1).astype(np.float64)):
        assert value == naive.element("some/näme", shape_or_one, e, type, data, exponent, offset, seed, 1000), (
            e,
            value,
        )


@pytest.mark.parametrize(("type", "n"), [("f32", 0), ("f16", 1), ("f64", 3)])
def test_masked_rows(type, n):
    made = realize(Recipe((2, 7, 5), type, "masked", n=n), "w").data
    expected = [float(naive.element("w", (2, 7, 5), e, type, "masked", n=n)) for e in range(70)]
    np.testing.assert_array_equal(made.reshape(-1).astype(np.float64), expected)
    unseen = np.isneginf(made).all(axis=-1).reshape(-1)
    np.testing.assert_array_equal(unseen, [n > 0 and row % n == n - 1 for row in range(14)])
    assert n == 1 or 0.2 < np.isneginf(made[~unseen.reshape(2, 7)]).mean() < 0.5


def test_late_rows():
    made = realize(Recipe((2, 7, 5), "f16", "late", n=2), "w").data
    expected = [float(naive.element("w", (2, 7, 5), e, "f16", "late", n=2)) for e in range(70)]
    assert made.ravel().tolist() == expected
    assert np.isneginf(made[0]).sum(axis=-1).tolist() == [0, 2, 4, 4, 4, 4, 4]


@pytest.mark.parametrize(("n", "ones"), [(2, [5, 3, 1, 1]), (-2, [1, 1, 3, 5])])
def test_prefix_rows(n, ones):
    made = realize(Recipe((2, 2, 5), "i32", "prefix", exponent=0, n=n), "w").data.reshape(-1)
    assert made.tolist() == [naive.element("w", (2, 2, 5), e, "i32", "prefix", exponent=0, n=n) for e in range(20)]
    assert made.reshape(4, 5).sum(axis=1).tolist() == ones


@pytest.mark.parametrize("n", [0, 1, 5])
def test_rows_of_zeros_and_rows_of_outliers(n):
    made = realize(Recipe((2, 7, 5), "f32", "rows", n=n), "w").data
    expected = [float(naive.element("w", (2, 7, 5), e, "f32", "rows", n=n)) for e in range(70)]
    assert made.ravel().tolist() == expected
    rows = made.reshape(14, 5)
    assert [not row.any() for row in rows] == [n > 0 and i % n == n - 1 for i in range(14)]
    assert n or abs(rows[3::7]).max() > 10 * abs(np.delete(rows, [3, 10], axis=0)).max()


def test_masked_is_no_integer():
    with pytest.raises(BadInput, match="masked wants a floating type"):
        realize(Recipe((3, 4), "i32", "masked"), "w")


@pytest.mark.parametrize("shape", [(2, 9, 2, 3), (3, 9), (2, 3, 8), (8,)])
def test_the_channel_of_outliers(shape):
    made = realize(Recipe(shape, data="outliers", exponent=0), "w").data
    axis = 1 if len(shape) == 4 else len(shape) - 1
    calm = np.delete(made, 3, axis)
    assert abs(calm).max() < 131071 and abs(calm).std() < 40000
    assert (
        made.reshape(-1) == [naive.element("w", shape, e, data="outliers", exponent=0) for e in range(made.size)]
    ).all()


def test_integers_are_rounded_half_to_even():
    made = realize(Recipe((64,), "i32", "integers", -1), "ids").data
    halves = realize(Recipe((64,), "f32", "integers", -1), "ids").data
    assert {-1.5, -0.5, 0.5, 1.5} <= set(halves.tolist())
    assert (made == np.rint(halves)).all()
    assert made.tolist() == [naive.element("ids", (64,), e, "i32", "integers", -1) for e in range(64)]


@pytest.mark.parametrize("type", ["i32", "i64", "u8"])
def test_integer_types(type):
    made = realize(Recipe((40,), type, "token_ids", 0, n=200), "ids")
    assert made.data.dtype == SCALAR_TYPES[type]
    assert made.data.tolist() == [naive.element("ids", (40,), e, type, "token_ids", 0, n=200) for e in range(40)]


@pytest.mark.parametrize("type", BLOCKS)
@pytest.mark.parametrize("exponent", [-28, -18, -3])
def test_blocks_are_those_of_the_specification(type, exponent):
    block_type = BLOCK_TYPES[type]
    recipe = Recipe((3, 2 * block_type.block), type, "bell", exponent, seed=9)
    if not scales_fit(type, exponent):
        with pytest.raises(BadInput, match=f"exponent {exponent} puts a scale of {type} outside its type"):
            realize(recipe, "blocks")
        return
    made = realize(recipe, "blocks")
    blocks = made.data.reshape(6, block_type.bytes)
    for b in range(6):
        assert blocks[b].tobytes() == naive.block("blocks", b, block_type.bytes, SCALE_FIELDS[type], exponent, 9)


# kind of a scale -> the powers of two that it has, subnormals of ten bits' mantissa among them
POWERS = {"f16": (-24, 15), "f16 in pieces": (-24, 15), "e8m0": (-125, 127), "ue4m3": (-7, 7)}


@pytest.mark.parametrize("type", BLOCKS)
def test_every_exponent_that_a_scale_has_and_no_other(type):
    fields = SCALE_FIELDS[type]
    least = max(POWERS[field.kind][0] - field.shift for field in fields)
    most = min(POWERS[field.kind][1] - field.shift for field in fields)
    size = BLOCK_TYPES[type].bytes
    for exponent in (least, most):
        made = realize(Recipe((2 * BLOCK_TYPES[type].block,), type, exponent=exponent), "blocks").data
        for b in range(2):
            assert made[b * size : (b + 1) * size].tobytes() == naive.block("blocks", b, size, fields, exponent)
    for exponent in (least - 1, most + 1):
        with pytest.raises(BadInput, match="outside its type"):
            realize(Recipe((2 * BLOCK_TYPES[type].block,), type, exponent=exponent), "blocks")


@pytest.mark.jitted
@pytest.mark.parametrize("type", BLOCKS)
def test_blocks_have_the_deviation_of_bell_and_every_byte(type):
    made = realize(Recipe((256, 1024), type, exponent=-15), "w")
    assert set(made.data.tolist()) == set(range(256))
    values = made.values()
    assert np.isfinite(values).all()
    assert 2**-0.5 < values.std() / (37837.2 * 2**-15) < 2**0.5
    n = values.size / BLOCK_TYPES[type].block
    assert abs(values.mean()) < 4 * values.std() / n**0.5


@pytest.mark.jitted
def test_bell_is_nearly_normal():
    x = realize(Recipe((1 << 18,), exponent=0), "w").data.astype(np.float64)
    assert abs(x.mean()) < 5 * 37837.2 / 512
    assert abs(x.std() / 37837.2 - 1) < 0.01
    assert abs(np.corrcoef(x[::2], x[1::2])[0, 1]) < 0.01
    other = realize(Recipe((1 << 18,), exponent=0), "v").data.astype(np.float64)
    assert abs(np.corrcoef(x, other)[0, 1]) < 0.01


@pytest.mark.jitted
@pytest.mark.parametrize("size", [2047, 2048, 2049, 6145])
def test_long_float32_is_drawn_as_the_specification_says(size):
    """It has a kernel of its own, which computes 2,048 values at a time."""
    made = realize(Recipe((size,), offset=0.5, seed=1 << 40), "w").data.tolist()
    for e in {0, 2045, 2046, 2047 % size, 2048 % size, size // 2, size - 2, size - 1}:
        assert made[e] == naive.element("w", (size,), e, offset=0.5, seed=1 << 40), e


@pytest.mark.jitted
def test_chunks_cannot_be_seen(monkeypatch):
    recipe = Recipe((3, 5, 7, 11), "f16", "outliers", exponent=-17)
    blocks = Recipe((8, 256), "q8_0")
    whole = [realize(r, "w").data.tobytes() for r in (recipe, blocks)]
    monkeypatch.setattr(recipes, "_CHUNK", 13)
    assert [realize(r, "w").data.tobytes() for r in (recipe, blocks)] == whole


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        (Recipe((2,), data="gauss"), "unknown data set 'gauss'"),
        (Recipe((2,), type="q9_z"), "unknown type 'q9_z'"),
        (Recipe((2,), type="bool"), "no data set makes bool"),
        (Recipe((-2,)), "an axis is negative"),
        (Recipe((2**62,)), "more than 2^48 elements"),
        (Recipe((0, 2**62)), "more than 2^48 elements"),
        (Recipe((1,) * 70), "70 axes, at most 32"),
        (Recipe((2,), seed=1 << 64), "seed 18446744073709551616 is outside"),
        (Recipe((2,), exponent=97), "outside -114..96"),
        (Recipe((2,), offset=float("nan")), "not finite"),
        (Recipe((2,), data="token_ids"), "token_ids wants n"),
        (Recipe((2,), type="u8", exponent=0), "do not fit u8"),
        (Recipe((2,), type="f16", exponent=20), "overflows f16"),
        (Recipe((33,), type="q8_0"), "not whole blocks of 32"),
        (Recipe((), type="q8_0"), "not whole blocks of 32"),
        (Recipe((32,), type="q8_0", data="tiny"), "data must be 'bell'"),
        (Recipe((32,), type="q8_0", exponent=40), "outside its type"),
    ],
)
def test_bad_recipes_are_refused_in_one_line(recipe, says):
    with pytest.raises(BadInput, match=re.escape(says)) as caught:
        realize(recipe, "the/name")
    assert "'the/name'" in str(caught.value) and "\n" not in str(caught.value)


def test_readme_states_the_data_sets_the_scales_and_the_vectors():
    text = README.read_text()
    assert re.findall(r"^   \| (\w+) \| .* \| .* \|", text, re.M)[1:] == list(DATA_SETS)
    stated = text.split("Byte offset and shift of each scale:")[1].split(". So")[0]
    fields = "; ".join(f"{t} " + ", ".join(f"{f.offset}:{f.shift}" for f in SCALE_FIELDS[t]) for t in SCALE_FIELDS)
    assert " ".join(stated.split()) == fields
    assert f"{key_of('a.weight'):016x}" in text
    vectors = {
        "f32, bell, exponent -15": Recipe((8,)),
        "f32, bell, exponent -15, seed 2^40": Recipe((8,), seed=1 << 40),
        "f32, integers, exponent 0": Recipe((8,), data="integers", exponent=0),
        "f32, wide, exponent -15": Recipe((8,), data="wide"),
        "f32, shifted, exponent -15": Recipe((8,), data="shifted"),
        "f16, bell, exponent -20, offset 1": Recipe((8,), "f16", exponent=-20, offset=1.0),
        "bf16, bell, exponent -15": Recipe((8,), "bf16"),
    }
    for title, recipe in vectors.items():
        first = " ".join(x.tobytes().hex() for x in realize(recipe, "a.weight").data[:4])
        assert f"| {title} | `{first}`" in text, (title, first)
    ids = realize(Recipe((8,), "i32", "token_ids", 0, n=49408), "a.weight").data[:4].tolist()
    assert f"| i32, token_ids, exponent 0, n 49408 | {', '.join(map(str, ids))} |" in text
