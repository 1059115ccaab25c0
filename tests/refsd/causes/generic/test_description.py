"""Errors of every shape, injected into arrays of rank 2 to 4, and what is said of them.

What is said is read back from the phrase, and the answer that it describes is built by other means.
"""

import re
import time
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from refsd.causes.generic.description import describe
from refsd.golden.judge import Standard
from refsd.golden.operations import OPERATIONS
from refsd.golden.verdict import judge
from refsd.judges.operation import OperationJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64, TORCH_BF16

pytestmark = pytest.mark.jitted

NOISES = ("float32", "bfloat16")
_CHANNEL = {2: 1, 3: 2, 4: 1}
# Two of each rank: every length is another, so that no two axes can be taken for each other.
_SHAPES = ((77, 40), (2, 33, 40), (2, 20, 9, 14))


def _noisy(y: np.ndarray, noise: str, seed: int) -> np.ndarray:
    """What an honest engine gives for y."""
    rng = np.random.default_rng(seed)
    if noise == "float32":
        return y + 3 * 2.0**-24 * np.sqrt(np.mean(y * y) + 1e-30) * rng.standard_normal(y.shape)
    return (y * (1 + 2.0**-10 * rng.standard_normal(y.shape))).astype(ml_dtypes.bfloat16).astype(np.float64)


def _truth(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(5).standard_normal(shape)


def _said(
    wrong: Callable[[np.ndarray], np.ndarray], noise: str, shape=(2, 20, 9, 14), last: Callable = lambda y: y
) -> list[str]:
    """What is said of an engine with an error; last: what it does after its rounding."""
    truth = _truth(shape)
    found = last(_noisy(wrong(truth.copy()), noise, 2))
    return describe(found, truth, _noisy(truth, noise, 1), _CHANNEL[len(shape)])


def _put(value, *index) -> Callable[[np.ndarray], np.ndarray]:
    """The value, or noise of the truth's size, at an index."""

    def wrong(y):
        y = y.copy()
        part = y[index]
        y[index] = part + np.random.default_rng(8).standard_normal(part.shape) if value is None else value
        return y

    return wrong


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("shape", _SHAPES, ids=str)
def test_honest_answers_have_no_description(shape, noise):
    assert _said(lambda y: y, noise, shape) == []


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("shape", _SHAPES, ids=str)
def test_errors_without_a_shape_have_no_description(shape, noise):
    rng = np.random.default_rng(3)
    wrongs = (
        lambda y: y + rng.standard_normal(y.shape),
        lambda y: y + 0.05 * rng.standard_normal(y.shape),
        lambda y: y * (1 + 0.1 * rng.standard_normal(y.shape)),
        lambda y: rng.standard_normal(y.shape),
        lambda y: rng.permutation(y.ravel()).reshape(y.shape),
        lambda y: y + rng.standard_t(2, y.shape),
        np.tanh,
    )
    for wrong in wrongs:
        assert _said(wrong, noise, shape) == []


def test_what_is_true_of_all_but_a_little_is_not_said():
    sigma = 3 * 2.0**-24

    def one_off(y):
        y.flat[77] += 200 * sigma
        return y

    def two_errors(y):
        return (1 + 1.5 * sigma) * y + 2.5 * sigma * np.random.default_rng(7).standard_normal(y.shape)

    def turned_but_for_the_middle(y):
        y = y[:, :, ::-1].copy()
        y[0, 0, 4, 0] += 1
        return y

    def another_constant_in_each_channel(y):
        return np.zeros_like(y) + np.random.default_rng(7).standard_normal((1, 20, 1, 1))

    assert _said(lambda y: one_off(2 * y), "float32") == []
    assert _said(two_errors, "float32") == []
    assert _said(turned_but_for_the_middle, "float32") == []
    assert _said(another_constant_in_each_channel, "float32") == []


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("shape", _SHAPES, ids=str)
@pytest.mark.parametrize(
    ("wrong", "phrase"),
    [
        (lambda y: 2 * y, "y = 2 truth"),
        (lambda y: 0.25 * y, "y = 0.25 truth"),
        (lambda y: -y, "y = -truth"),
        (lambda y: -0.5 * y, "y = -0.5 truth"),
        (lambda y: y + 0.75, "y = truth + 0.75"),
        (lambda y: y - 0.75, "y = truth - 0.75"),
        (lambda y: 1.5 * y - 0.2, "y = 1.5 truth - 0.2"),
        (np.abs, "y = |truth|"),
        (lambda y: np.maximum(y, 0), "y = max(truth, 0)"),
    ],
)
def test_a_formula(wrong, phrase, shape, noise):
    assert _said(wrong, noise, shape) == [phrase]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("wrong", "shape", "phrase"),
    [
        (lambda y: y.swapaxes(1, 2), (2, 9, 9, 14), "axes 1 and 2 are exchanged"),
        (lambda y: y.T, (20, 20), "axes 0 and 1 are exchanged"),
        (
            lambda y: y.swapaxes(2, 3).reshape(y.shape),
            (2, 5, 9, 14),
            "flat, it is the truth stored as [N, C, W, H]",
        ),
        (
            lambda y: y.transpose(0, 2, 3, 1).reshape(y.shape),
            (2, 5, 9, 14),
            "flat, it is the truth stored as [N, H, W, C]",
        ),
        (
            lambda y: y.reshape(2, 5, 14, 9).swapaxes(2, 3),
            (2, 5, 9, 14),
            "it is the truth's flat data read as [N, C, W, H]",
        ),
        (lambda y: y.T.reshape(y.shape), (20, 33), "flat, it is the truth stored as [axis 1, axis 0]"),
        (lambda y: y[:, ::-1], (2, 20, 33), "axis 1 is reversed"),
        (lambda y: np.roll(y, 2, 1), (77, 20), "axis 1 (channels) is rolled by 2"),
        (lambda y: np.roll(y, -6, 2), (2, 5, 20, 9), "axis 2 is rolled by -6"),
        (lambda y: y[:, np.r_[10:20, :10]], (2, 20, 9, 14), "axis 1 (channels) is its second half, then its first"),
        (
            lambda y: y[:, np.arange(20) ^ 1],
            (5, 20),
            "axis 1 (channels) is itself with neighbours exchanged in pairs",
        ),
        (
            lambda y: y[..., np.r_[4:8, :4, 12:16, 8:12]],
            (2, 5, 16),
            "axis 2 (channels) is itself with neighbouring runs of 4 exchanged",
        ),
        (
            lambda y: y.reshape(6, 2, 10).swapaxes(1, 2).reshape(6, 20),
            (6, 20),
            "axis 1 (channels) is its two halves interleaved (0, n/2, 1, ...)",
        ),
        (lambda y: y[:, np.r_[:20:2, 1:20:2]], (6, 20), "axis 1 (channels) is its even indices, then its odd ones"),
        (
            lambda y: y.reshape(6, 4, 5).swapaxes(1, 2).reshape(6, 20),
            (6, 20),
            "axis 1 (channels) is transposed inside, as 4 x 5",
        ),
        (
            lambda y: y[:, np.r_[8:12, 4:8, :4]],
            (9, 12),
            "axis 1 (channels) is its 3 chunks of 4 in the order 2, 1, 0",
        ),
        (
            lambda y: y[:, [0, 1, 5, 3, 4, 2, 6, 7, 8]],
            (2, 9, 5),
            "indices 2 and 5 of axis 1 are exchanged",
        ),
        (
            lambda y: y[[2, 0, 3, 1, 4]],
            (5, 33),
            "axis 0 is permuted: 0 is the truth's 2, 1 is the truth's 0, 2 is the truth's 3, 3 is the truth's 1",
        ),
        (
            lambda y: y[:, [0, 4, 2, 6, 4, 5, 6]],
            (9, 7, 5),
            "axis 1 is rearranged: 1 is the truth's 4, 3 is the truth's 6",
        ),
        (lambda y: np.repeat(y[:1], 3, 0), (3, 5, 9), "every index of axis 0 (batch) is a copy of index 0"),
        (lambda y: y[:, [0, 1, 2, 2, 2, 2]], (5, 6, 9), "the last 3 of 6 along axis 1: a copy of index 2"),
        (lambda y: y[:, np.arange(12) % 4], (5, 12, 9), "index i of axis 1 is the truth's i mod 4"),
        (lambda y: y[:, np.arange(12) // 3], (5, 12, 9), "index i of axis 1 is the truth's i // 3"),
        (lambda y: y[:, np.r_[0, :19]], (33, 20), "axis 1 (channels) is shifted by 1, its edge repeated"),
    ],
)
def test_right_numbers_at_wrong_places(wrong, shape, phrase, noise):
    assert _said(wrong, noise, shape) == [phrase]


@pytest.mark.parametrize("noise", NOISES)
def test_off_by_one_with_something_else_at_the_edge(noise):
    def late(y):
        return np.concatenate([np.zeros_like(y[:, :, :1]), y[:, :, :-1]], 2)

    def early(y):
        return np.concatenate([y[:, :, 2:], 7 + y[:, :, -2:]], 2)

    assert _said(late, noise) == ["axis 2 is shifted by 1, and its first index is something else"]
    assert _said(early, noise, (2, 5, 33)) == [
        "axis 2 (channels) is shifted by -2, and its last 2 indices are something else"
    ]


_ALL = slice(None)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("index", "shape", "place"),
    [
        ((slice(1, None),), (3, 5, 9), "items from 1 on of axis 0 (batch)"),
        ((slice(1, None),), (2, 20, 9, 14), "items from 1 on of axis 0 (batch)"),
        (
            (_ALL, slice(72, None)),
            (5, 77),
            "the last 5 of 77 along axis 1 (channels), after the last whole block of 8",
        ),
        (
            (slice(64, None),),
            (77, 5),
            "the last 13 of 77 along axis 0, after the last whole block of 16, 32 or 64",
        ),
        (
            (_ALL, slice(192, None)),
            (4, 256),
            "the last 64 of 256 along axis 1 (channels), from 192 on, a multiple of 64",
        ),
        ((_ALL, slice(0, 3)), (4, 20, 9), "the first 3 of 20 along axis 1"),
        ((_ALL, 7), (2, 20, 9, 14), "index 7 of 20 along axis 1 (channels)"),
        ((_ALL, [3, 7, 12]), (2, 20, 9, 14), "indices 3, 7 and 12 of 20 along axis 1 (channels)"),
        ((_ALL, slice(1, None, 4)), (3, 20, 9), "every 4th index from 1 on of 20 along axis 1"),
        ((_ALL, slice(None, None, 3)), (9, 21), "every 3rd index of 21 along axis 1 (channels)"),
        (
            (_ALL, np.flatnonzero(np.arange(48) % 16 >= 8)),
            (9, 48),
            "indices 8 to 15 of every 16 along axis 1 (channels)",
        ),
        ((_ALL, _ALL, [0, -1]), (2, 5, 9, 14), "a border of width 1 along axis 2"),
        ((1, 3, 4, 5), (2, 20, 9, 14), "element [1, 3, 4, 5]"),
        (
            (_ALL, _ALL, slice(0, 4), slice(4, 8)),
            (2, 5, 9, 14),
            "the first 4 of 9 along axis 2 and indices 4 to 7 of 14 along axis 3",
        ),
    ],
)
def test_where_the_error_is(index, shape, place, noise):
    assert _said(_put(None, *index), noise, shape) == [f"the error is only in {place}"]


def test_the_rows_of_every_fourth_thread_are_told_through_the_batch():
    truth, noise = _truth((2, 7, 40)), 2.0**-24
    honest = truth + noise * np.random.default_rng(2).standard_normal(truth.shape)
    found = honest.copy()
    found.reshape(14, 40)[3::4] *= 1.3
    place = "every 4th index from 3 on of 14 along the rows"
    assert describe(found, truth, honest, 2) == [f"the error is only in {place}", "there y = 1.3 truth"]


def test_an_error_in_an_engine_that_rounds_more_than_the_honest_run():
    truth, noise = _truth((77, 40)), 3 * 2.0**-24
    rng = np.random.default_rng(2)
    found = truth + 3 * noise * rng.standard_normal(truth.shape)
    found[72:] *= 1.01
    phrases = describe(found, truth, truth + noise * rng.standard_normal(truth.shape), 1)
    assert phrases[0] == "the error is only in the last 5 of 77 along axis 0, after the last whole block of 8"


@pytest.mark.parametrize("noise", NOISES)
def test_a_border_of_a_picture(noise):
    def framed(top, bottom, left, right):
        def wrong(y):
            out = y + np.random.default_rng(8).standard_normal(y.shape)
            H, W = y.shape[2:]
            inner = (..., slice(top, H - bottom), slice(left, W - right))
            out[inner] = y[inner]
            return out

        return wrong

    assert _said(framed(1, 1, 1, 1), noise) == ["the error is only in a border of width 1 along axes 2 and 3"]
    assert _said(framed(0, 1, 0, 2), noise) == [
        "the error is only in a border (axis 2: 0 before, 1 after; axis 3: 0 before, 2 after)"
    ]


@pytest.mark.parametrize("noise", NOISES)
def test_a_tail_of_the_flat_data(noise):
    def wrong(y):
        flat = y.ravel()
        flat[640:] += np.random.default_rng(8).standard_normal(flat.size - 640)
        return y

    assert _said(wrong, noise, (28, 33)) == [
        "the error is only in the elements from 640 on of 924, counted flat (a multiple of 128)"
    ]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "zero"),
        (np.nan, "NaN"),
        (np.inf, "infinite"),
        (3.5, "constant 3.5"),
        (float(np.frombuffer(b"\xcd\xcd\xcd\xcd", np.float32)[0]), "-4.31602e+08, memory's 0xCDCDCDCD"),
    ],
)
def test_what_stands_there(value, text, noise):
    last = _put(value, _ALL, slice(16, None))
    place = "the last 4 of 20 along axis 1 (channels), after the last whole block of 8 or 16"
    finite = f"the error is only in {place}, and all there is {text}"
    expected = finite if np.isfinite(value) else f"{text} in {place}, cause unknown"
    assert _said(lambda y: y, noise, last=last) == [expected]
    whole = _said(lambda y: y, noise, last=lambda y: np.full_like(y, value))
    assert whole == [f"all of it is {text}{'' if np.isfinite(value) else ', cause unknown'}"]


def test_a_few_elements_that_are_not_finite_are_counted():
    def wrong(y):
        y = y.copy()
        y[0, 3, 2, 1], y[1, 5, 2, 4] = np.nan, np.inf
        return y

    said = "NaN or infinite in 2 of 5040 elements, first at [0, 3, 2, 1], cause unknown"
    assert _said(lambda y: y, "float32", last=wrong) == [said]


@pytest.mark.parametrize("noise", NOISES)
def test_scattered_elements_that_nobody_wrote(noise):
    places = np.random.default_rng(6).permutation(5040)[:30]

    def last(y):
        np.put(y, places, 0)
        return y

    (phrase,) = _said(lambda y: y, noise, last=last)
    match = re.fullmatch(r"(\d+) elements of 5040, and no others, are wrong: zero", phrase)
    assert match
    # A truth that is almost zero may be zero.
    assert 28 <= int(match[1]) <= 30


@pytest.mark.parametrize("noise", NOISES)
def test_a_formula_in_one_part(noise):
    def doubled(y):
        y[:, 7] *= 2
        return y

    def turned(y):
        y[1] = y[1, ::-1]
        return y

    assert _said(doubled, noise) == [
        "the error is only in index 7 of 20 along axis 1 (channels)",
        "there y = 2 truth",
    ]
    assert _said(turned, noise) == [
        "the error is only in items from 1 on of axis 0 (batch)",
        "there axis 1 (channels) is reversed",
    ]


@pytest.mark.parametrize("shape", _SHAPES, ids=str)
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3"])
def test_one_rounding_more(name, shape):
    dtype = np.dtype(np.float16 if name == "float16" else getattr(ml_dtypes, name.replace("e4m3", "e4m3fn")))
    phrases = _said(lambda y: y, "float32", shape, last=lambda y: y.astype(dtype).astype(np.float64))
    assert phrases == [f"it is the truth rounded to {name}"]


def test_a_sum_in_float16():
    rng = np.random.default_rng(9)
    x, w = rng.standard_normal((33, 64)), rng.standard_normal((64, 20))
    found = np.zeros((33, 20), np.float16)
    for k in range(64):
        found = (found + x[:, k, None] * w[k]).astype(np.float16)
    (phrase,) = describe(found, x @ w, _noisy(x @ w, "float32", 1), 1)
    match = re.fullmatch(r"its values are all float16 numbers, ([\d.]+) roundings \(RMS\) from the truth", phrase)
    assert match
    assert 1.5 < float(match[1]) < 20


def test_the_grid_that_the_engine_declares_is_no_error():
    truth = _truth((33, 40))
    found = (truth * (1 + 0.005 * np.random.default_rng(3).standard_normal(truth.shape))).astype(np.float16)
    assert describe(found, truth, truth.astype(np.float16), 1) == []


def test_numbers_beyond_float16():
    truth = 30000 * _truth((33, 40))
    honest = _noisy(truth, "float32", 1)
    cut = np.clip(_noisy(truth, "float32", 2), -65504, 65504)
    assert describe(cut, truth, honest, 1) == ["the truth is cut off at 65504, the largest float16"]
    with np.errstate(over="ignore"):
        infinite = np.where(np.abs(truth) > 65504, truth * np.inf, honest)
    assert describe(infinite, truth, honest, 1) == ["the truth is infinite beyond 65504, the largest float16"]


def test_degenerate_arrays_say_nothing_and_raise_nothing():
    for truth in (np.zeros((3, 0)), np.zeros((4, 5)), np.ones((64,)), np.full((2, 3), np.inf), np.asarray(2.0)):
        describe(truth + 1, truth, truth, -1)
        assert describe(truth, truth, truth, -1) == []
    assert describe(np.array([2.0, 1.0]), np.array([1.0, 2.0]), np.array([1.0, 2.0]), -1) == []


@pytest.mark.jitted
def test_a_million_elements_in_a_second():
    truth = _truth((4, 64, 64, 64))
    honest, found = _noisy(truth, "float32", 1), truth + np.random.default_rng(2).standard_normal(truth.shape)
    begun = time.process_time()
    assert describe(found, truth, honest, 1) == []
    assert time.process_time() - begun < 1.5


# --- what is said of the known bugs of ten pages is true --------------------------------------------------------


_PAGES = (
    "linear",
    "conv2d",
    "attention",
    "group_norm",
    "layer_norm",
    "rope",
    "patchify",
    "pad",
    "upsample_nearest",
    "lokr",
)


def _region(text: str, shape: tuple[int, ...]) -> np.ndarray:
    """The elements that a phrase speaks of."""
    inside = np.ones(shape, bool)
    understood = False

    def keep(axis: int, chosen: np.ndarray) -> None:
        nonlocal understood
        understood = True
        inside[...] &= chosen.reshape([-1 if a == axis else 1 for a in range(len(shape))])

    for match in re.finditer(r"items from 1 on of axis (\d)", text):
        keep(int(match[1]), np.arange(shape[int(match[1])]) >= 1)
    for pattern, chosen in (
        (r"the last (\d+) of (\d+) along axis (\d)", lambda i, k, n: i >= n - k),
        (r"the first (\d+) of (\d+) along axis (\d)", lambda i, k, n: i < k),
        (r"index (\d+) of (\d+) along axis (\d)", lambda i, k, n: i == k),
        (r"a border of width (\d+) (along) axis (\d)", lambda i, k, n: (i < k) | (i >= i.size - k)),
        (r"indices (\d+) to (\d+) of \d+ along axis (\d)", lambda i, a, b: (i >= a) & (i <= b)),
    ):
        for match in re.finditer(pattern, text):
            axis, second = int(match[3]), int(match[2]) if match[2].isdigit() else 0
            keep(axis, chosen(np.arange(shape[axis]), int(match[1]), second))
    for match in re.finditer(r"indices (\d+) to (\d+) of every (\d+) along axis (\d)", text):
        phase = np.arange(shape[int(match[4])]) % int(match[3])
        keep(int(match[4]), (phase >= int(match[1])) & (phase <= int(match[2])))
    for match in re.finditer(r"every (\d+)\w\w index(?: from (\d+) on)? of \d+ along axis (\d)", text):
        keep(int(match[3]), np.arange(shape[int(match[3])]) % int(match[1]) == int(match[2] or 0))
    for match in re.finditer(r"indices ((?:\d+, )*\d+ and \d+) of \d+ along axis (\d)", text):
        keep(
            int(match[2]), np.isin(np.arange(shape[int(match[2])]), [int(i) for i in re.findall(r"\d+", match[1])])
        )
    for match in re.finditer(r"the first (\d+) and the last (\d+) of (\d+) along axis (\d)", text):
        i = np.arange(int(match[3]))
        keep(int(match[4]), (i < int(match[1])) | (i >= i.size - int(match[2])))
    frame = re.search(r"axis (\d): (\d+) before, (\d+) after; axis (\d): (\d+) before, (\d+) after", text)
    width = re.search(r"a border of width (\d+) along axes (\d) and (\d)", text)
    if frame or width:
        understood = True
        sides = [int(part) for part in frame.groups()] if frame else []
        if width:
            k, a, b = (int(part) for part in width.groups())
            sides = [a, k, k, b, k, k]
        inner = [slice(None)] * len(shape)
        for axis, before, after in (sides[:3], sides[3:]):
            inner[axis] = slice(before, shape[axis] - after)
        inside[tuple(inner)] = False
    element = re.search(r"element \[([\d, ]+)\]", text)
    if element:
        understood = True
        inside[...] = False
        inside[tuple(int(i) for i in element[1].split(", "))] = True
    flat = re.search(r"the elements from (\d+) on of \d+, counted flat", text)
    if flat:
        understood = True
        inside[...] = (np.arange(inside.size) >= int(flat[1])).reshape(shape)
    assert understood, text
    return inside


def _moved(text: str, truth: np.ndarray) -> np.ndarray | None:
    """The truth with the slices of an axis where a phrase says that they are; None if it says nothing of that."""
    copied = re.search(r"every index of axis (\d)(?: \(\w+\))? is a copy of index (\d+)", text)
    if copied:
        axis, at = int(copied[1]), int(copied[2])
        return np.broadcast_to(np.take(truth, [at], axis), truth.shape)
    tail = re.search(r"the last (\d+) of \d+ along axis (\d)[^:]*: a copy of index (\d+)", text)
    if tail:
        rows, axis, at = map(int, tail.groups())
        y = np.moveaxis(truth, axis, 0).copy()
        y[-rows:] = y[at]
        return np.moveaxis(y, 0, axis)
    match = re.search(r"axis (\d)(?: \(\w+\))? is (.*)", text)
    if not match:
        return None
    axis, how = int(match[1]), match[2]
    y = np.moveaxis(truth, axis, 0)
    n = y.shape[0]
    halves = (y[: n // 2], y[n // 2 :])
    read = re.match(r"transposed inside, as (\d+) x (\d+)", how)
    permuted = re.findall(r"(\d+) is the truth's (\d+)", how)
    if how == "reversed":
        y = y[::-1]
    elif rolled := re.match(r"rolled by (-?\d+)", how):
        y = np.roll(y, int(rolled[1]), 0)
    elif shifted := re.match(r"shifted by (-?\d+)", how):
        k = int(shifted[1])
        edge = (slice(0, 1), slice(-1, None))[k < 0]
        out = np.roll(y, k, 0)
        lost = slice(0, k) if k > 0 else slice(k, None)
        out[lost] = np.nan if "something else" in how else y[edge]
        y = out
    elif how == "its second half, then its first":
        y = np.concatenate(halves[::-1])
    elif how.startswith("its two halves interleaved"):
        y = np.stack(halves, 1).reshape(y.shape)
    elif how == "its even indices, then its odd ones":
        y = np.concatenate([y[::2], y[1::2]])
    elif how == "itself with neighbours exchanged in pairs":
        y = y.reshape(-1, 2, *y.shape[1:])[:, ::-1].reshape(y.shape)
    elif runs := re.match(r"itself with neighbouring runs of (\d+) exchanged", how):
        y = y.reshape(-1, 2, int(runs[1]), *y.shape[1:])[:, ::-1].reshape(y.shape)
    elif read:
        y = y.reshape(int(read[1]), int(read[2]), *y.shape[1:]).swapaxes(0, 1).reshape(y.shape)
    elif chunks := re.match(r"its \d+ chunks of (\d+) in the order (.*)", how):
        parts = y.reshape(-1, int(chunks[1]), *y.shape[1:])
        y = parts[[int(i) for i in chunks[2].split(", ")]].reshape(y.shape)
    elif permuted:
        out = y.copy()
        named = re.search(r"and (\d+) more", how)
        for i, j in permuted:
            out[int(i)] = y[int(j)]
        if named:
            out[int(permuted[-1][0]) + 1 :] = np.nan
        y = out
    else:
        raise AssertionError(text)
    return np.moveaxis(y, 0, axis)


def _formula(text: str, found: np.ndarray, truth: np.ndarray) -> np.ndarray | None:
    """What a phrase's formula makes of the truth."""
    match = re.fullmatch(r"(?:there )?y = (?:(-?[\d.e-]*) ?)truth(?: ([+-]) ([\d.e+-]+))?", text)
    if not match:
        return {"y = |truth|": np.abs(truth), "y = max(truth, 0)": np.maximum(truth, 0)}.get(
            text.removeprefix("there ")
        )
    factor = float(match[1] + "1" if match[1] in ("", "-") else match[1])
    return factor * truth + float(f"{match[2] or ''}{match[3] or 0}")


def _read(text: str, found: np.ndarray, truth: np.ndarray) -> np.ndarray | None:
    stored = re.search(r"the truth stored as \[(.*)\]", text)
    read = re.search(r"the truth's flat data read as \[(.*)\]", text)
    if not stored and not read:
        exchanged = re.search(r"axes (\d) and (\d) are exchanged", text)
        return truth.swapaxes(int(exchanged[1]), int(exchanged[2])) if exchanged else None
    names = (stored or read)[1].split(", ")
    order = [int(name[-1]) if name.startswith("axis") else "NCHW".index(name) for name in names]
    if stored:
        return truth.transpose(order).reshape(truth.shape)
    return truth.reshape([truth.shape[a] for a in order]).transpose(np.argsort(order))


def _is_true(text: str, found: np.ndarray, truth: np.ndarray, limit: np.ndarray) -> bool:
    """A phrase that is alone; limit: of an honest engine's error."""
    if text.startswith("it is the truth rounded to float16"):
        return np.mean(np.abs(found - truth.astype(np.float16)) <= limit + 1e-12) > 0.95
    if text.startswith("its values are all float16"):
        return np.array_equal(found.astype(np.float16), found)
    if place := re.fullmatch(r"NaN in (.*), cause unknown", text):
        return np.array_equal(np.isnan(found), _region(f"the error is only in {place[1]}", found.shape))
    cut = re.match(r"the truth is cut off at ([\d.]+)", text)
    if cut:
        return bool(np.abs(found).max() <= float(cut[1]) * 1.00001)
    y = next(
        y for y in (_formula(text, found, truth), _moved(text, truth), _read(text, found, truth)) if y is not None
    )
    known = np.isfinite(y)
    assert known.any()
    rest, before = (np.sqrt(np.mean((found - x)[known] ** 2)) for x in (y, truth))
    return bool(rest <= 0.6 * before)


@pytest.mark.parametrize("numerics", [FLOAT32, TORCH_BF16], ids=lambda n: n.name)
@pytest.mark.parametrize("name", _PAGES)
def test_what_is_said_of_known_bugs_is_true(name, numerics):
    op, kind = OPERATIONS[name], OperationJudge()
    spoken = 0
    for case in op.cases[:4]:
        inputs = case.realize()
        truth, honest = (kind.answer(case, inputs, Arithmetic(n)) for n in (FLOAT64, numerics))
        standard = Standard(case, inputs, truth, honest, numerics)
        limit = op.bound_of(numerics, inputs, case.params, truth["y"]).limit
        for mutant in op.mutants:
            wrong = kind.wrong_answer(case, inputs, mutant)
            if wrong is None or wrong["y"].shape != truth["y"].shape:
                continue
            y = wrong["y"].astype(numerics.storage_dtype)
            if judge(kind.measure(standard, {"y": y})).passed:
                continue
            found, right = y.astype(np.float64), truth["y"]
            phrases = describe(y, right, honest["y"], op.channel)
            spoken += len(phrases)
            box = None
            for phrase in phrases:
                if phrase.startswith("the error is only in"):
                    inside = _region(phrase, found.shape)
                    # Outside, no error that the verdict would mind; inside, what it minds.
                    with np.errstate(invalid="ignore"):
                        error = np.abs(found - right)
                    assert (error[~inside] <= 4 * limit[~inside]).all(), (case.name, mutant.name, phrase)
                    assert not (error[inside] <= limit[inside]).all(), (case.name, mutant.name, phrase)
                    box = np.ix_(*(np.unique(index) for index in np.nonzero(inside)))
                    for text, value in (("is zero", 0.0), ("is NaN", np.nan)):
                        if phrase.endswith(f"all there {text}"):
                            assert np.array_equal(found[inside], np.full(inside.sum(), value), equal_nan=True)
                elif ", and no others, are wrong: " in phrase:
                    assert phrase.split()[0] in (str((found == 0).sum()), str(np.isnan(found).sum())), phrase
                else:
                    part = box if phrase.startswith("there ") and box is not None else ...
                    assert _is_true(phrase, found[part], right[part], limit[part]), (case.name, mutant.name, phrase)
    assert spoken
