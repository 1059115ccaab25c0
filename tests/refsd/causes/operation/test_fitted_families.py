"""Families that are fitted to a wrong answer name it, on an answer that is made here by hand, and nothing else."""

import math

import numpy as np
import pytest

from refsd.causes.generic.fitted_causes import fitted_causes
from refsd.causes.operation import fitted_constants
from refsd.causes.operation.fitted_constants import fitted
from refsd.causes.operation.function_steps import NAMES, other_functions, straight_lines
from refsd.causes.operation.generated_mutants import generated
from refsd.causes.operation.memory_layouts import of_other_strides, of_strides
from refsd.causes.operation.product_steps import other_tokens, rope_steps
from refsd.causes.operation.row_sums import row_sums, softmax_sums
from refsd.causes.operation.softmax_weights import key_counts
from refsd.golden.mutations import answer
from refsd.golden.operations import OPERATIONS
from refsd.numerics.tensor import stored

RNG = np.random.default_rng(5)


def _normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def _call(op, params=None, **inputs):
    page, tensors = OPERATIONS[op], {name: stored(x) for name, x in inputs.items()}
    return page, tensors, page.complete(tensors, params or {})


def _named(family, call, found):
    return [(name, y) for name, y in family(*call, np.asarray(found, np.float64))]


CONV = _call(
    "conv2d",
    {"padding": (1, 1, 0, 0)},
    x=_normal(2, 3, 9, 12),
    weight=_normal(4, 3, 3, 2),
    bias=_normal(4),
)
LINEAR = _call("linear", x=_normal(3, 20, 24), weight=_normal(10, 24), bias=_normal(10))


def _with(call, **changed):
    page, inputs, params = call
    return answer(page, {**inputs, **{name: stored(x) for name, x in changed.items()}}, params)


ROWS = _call("layer_norm", x=_normal(6, 77) + 0.5, weight=1 + _normal(77) / 4, bias=_normal(77))


def _normed(call, mean, variance):
    values = {name: tensor.values().astype(np.float64) for name, tensor in call[1].items()}
    return (values["x"] - mean) / np.sqrt(variance + call[2]["eps"]) * values["weight"] + values["bias"]


def _of(x, count):
    mean = x.sum(1, keepdims=True) / count
    return mean, ((x - mean) ** 2).sum(1, keepdims=True) / count


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (lambda x: _of(x[:, :64], 64), "mean and variance are those of the first 64 of 77"),
        (lambda x: _of(x[:, 13:], 64), "mean and variance are those of the last 64 of 77"),
        (lambda x: _of(np.delete(x, np.s_[32:64], 1), 45), "mean and variance lack numbers 32 to 63 of 77"),
    ],
)
def test_statistics_of_other_numbers(part, says):
    found = _normed(ROWS, *part(ROWS[1]["x"].values().astype(np.float64)))
    told = _named(row_sums, ROWS, found)
    assert told and told[0][0].startswith(says), told
    np.testing.assert_allclose(told[0][1], found, rtol=1e-4, atol=1e-4)


def test_statistics_that_are_read_on_into_the_next_row():
    x = ROWS[1]["x"].values().astype(np.float64)
    flat = x.ravel()
    read = np.stack([np.r_[flat[77 * i : 77 * i + 128], np.full(128, np.nan)][:128] for i in range(6)])
    mean, square = np.nansum(read, 1)[:, None] / 77, np.nansum(read**2, 1)[:, None] / 77
    told = _named(row_sums, ROWS, _normed(ROWS, mean, square - mean**2))
    assert told[0][0] == "mean and variance are read on into the next row, 128 numbers for 77, divided by 77"


def test_variances_beyond_float16_print_no_warning():
    loud = _call("layer_norm", x=1000 * ROWS[1]["x"].values(), weight=1 + _normal(77) / 4, bias=_normal(77))
    found = _normed(loud, *_of(loud[1]["x"].values().astype(np.float64)[:, :64], 64))
    assert _named(row_sums, loud, found)[0][0].startswith("mean and variance are those of the first 64 of 77")


def test_right_rows_and_noise_have_no_other_statistics():
    right = answer(*ROWS)
    assert not _named(row_sums, ROWS, right)
    assert not _named(row_sums, ROWS, right + 0.1 * RNG.standard_normal(right.shape))
    assert not _named(row_sums, ROWS, 1.03 * right)


def test_zeros_that_fill_up_a_row_count():
    x = ROWS[1]["x"].values().astype(np.float64)
    mean, square = x.sum(1, keepdims=True) / 80, (x**2).sum(1, keepdims=True) / 80
    told = _named(row_sums, ROWS, _normed(ROWS, mean, square - mean**2))
    assert told[0][0] == "mean and variance are those of 80 numbers for 77: zeros fill up a row"


def _more_keys(*call):
    return softmax_sums(*call, more=True)


SCORES = _call("softmax", x=_normal(9, 21))
CAPPED = _call("attention_softcap", {"cap": 2.0}, **{name: _normal(2, 5, 2, 8) for name in "qkv"})


@pytest.mark.parametrize(("score", "says"), [(0.0, "0"), (-2.0, "-cap")])
def test_keys_that_are_none_count_in_the_sum(score, says):
    q, k, v = (CAPPED[1][name].values().astype(np.float64) for name in "qkv")
    powers = np.exp(2 * np.tanh(np.einsum("blhd,bjhd->bhlj", q, k) / math.sqrt(8) / 2))
    found = np.einsum("bhlj,bjhe->blhe", powers / (powers.sum(-1, keepdims=True) + 3 * np.exp(score)), v)
    ((phrase, y),) = _named(_more_keys, CAPPED, found)
    assert phrase == f"the softmax's sum has 3 keys more, of score {says} and value 0: padding is not hidden"
    np.testing.assert_allclose(y, found, rtol=1e-4, atol=1e-5)


def test_a_sum_with_more_by_no_whole_number_of_keys_has_another_cause():
    powers = np.exp(SCORES[1]["x"].values().astype(np.float64))
    sums = powers.sum(-1, keepdims=True)
    assert [name for name, _ in _named(_more_keys, SCORES, powers / (sums + 5))] == [
        "the softmax's sum has 5 keys more, of score 0 and value 0: padding is not hidden"
    ]
    assert not _named(_more_keys, SCORES, powers / (sums + 5.2))
    assert not _named(_more_keys, SCORES, powers / (1.2 * sums))


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (np.repeat([1, 2, 1], [3, 2, 4]), "indices 3 to 4 of 9 along the keys are summed twice"),
        (np.repeat([1, 0], [6, 3]), "the last 3 of 9 along the keys are not summed"),
    ],
)
@pytest.mark.parametrize("mask", [None, np.where(np.tri(9, dtype=bool), 0, -np.inf)], ids=["all", "causal"])
def test_keys_count_otherwise_than_once(count, says, mask):
    """A tile of keys that is read twice, with its values; a tile that is lost; also under a mask of two axes."""
    masked = {} if mask is None else {"mask": mask.astype(np.float32)}
    call = _call("attention", q=_normal(2, 9, 2, 8), k=_normal(2, 9, 2, 8), v=_normal(2, 9, 2, 8), **masked)
    q, k, v = (call[1][name].values().astype(np.float64) for name in "qkv")
    powers = count * np.exp(0 if mask is None else mask) * np.exp(np.einsum("blhd,bjhd->bhlj", q, k) / math.sqrt(8))
    found = np.einsum("bhlj,bjhe->blhe", powers / powers.sum(-1, keepdims=True), v)
    ((phrase, y),) = _named(key_counts, call, found)
    assert phrase == says
    np.testing.assert_allclose(y, found, rtol=1e-4, atol=1e-5)
    assert not _named(key_counts, call, answer(*call))
    assert not _named(key_counts, call, found + 0.1 * _normal(*found.shape))


def test_a_number_that_nobody_would_write_comes_last():
    """Another period explains a frequency that is shifted by one half nearly as well."""
    page, inputs, params = _call("timestep_embedding", {"dim": 12}, t=np.array([1.0, 3.0], np.float32))
    found = answer(page, inputs, {**params, "freq_shift": 0.5})
    named = [phrase for phrase, _ in _named(fitted, (page, inputs, params), found)]
    assert named[0] == "freq_shift is 0.5, not 0" and named[-1].startswith("max_period is "), named


def test_most_keys_may_be_hidden_under_a_causal_mask():
    """A prompt of three tokens: all behind it are hidden, in one item alone."""
    causal = np.where(np.arange(12) > np.arange(12)[:, None], -np.inf, 0).astype(np.float32)
    q, k, v = (_normal(2, 12, 2, 8) for _ in range(3))
    call = _call("attention", q=q, k=k, v=v, mask=causal)
    ended = np.where(np.arange(12) > np.array([11, 2])[:, None], -np.inf, 0)[:, None, None]
    found = _with(call, mask=(causal + ended).astype(np.float32))
    told = [phrase for phrase, _ in _named(key_counts, call, found)]
    assert told == ["in item 1, the last 9 of 12 along the keys are not summed"]
    assert not _named(key_counts, call, answer(*call))


def test_keys_that_a_mask_hides_are_seen():
    hidden = np.zeros((2, 1, 1, 9), np.float32)
    hidden[0, ..., 6:], hidden[1, ..., 4:] = -np.inf, -np.inf
    q, k, v = (_normal(2, 7, 2, 8) if name == "q" else _normal(2, 9, 2, 8) for name in "qkv")
    call = _call("attention", q=q, k=k, v=v, mask=hidden)
    found = _with(call, mask=np.where(np.arange(9) == 5, 0, hidden).astype(np.float32))
    told = [phrase for phrase, _ in _named(key_counts, call, found)]
    assert told == ["in item 1, index 5 of 9 along the keys, which the mask hides, are seen"]


@pytest.mark.parametrize(
    ("call", "parts"),
    [(_call("gelu", x=2 * _normal(40, 60)), 1), (_call("geglu", x=2 * _normal(40, 120)), 2)],
)
def test_an_activation_of_straight_lines(call, parts):
    """A table of places -2, -0.5, 1 and 2 for GELU, or for the gate's."""
    first, *rest = np.split(call[1]["x"].values().astype(np.float64), parts, -1)
    gate, value = (rest[0], first) if rest else (first, np.ones_like(first))
    table = np.interp(gate, [-2, -0.5, 1, 2], [0, -0.15, 0.84, 2]) + np.maximum(gate - 2, 0)
    ((phrase, y),) = _named(straight_lines, call, value * table)
    assert phrase == "GELU (erf) is made of straight lines, which meet at -2, -0.5, 1 and 2"
    np.testing.assert_allclose(y, value * table, rtol=1e-4, atol=1e-5)
    assert not _named(straight_lines, call, answer(*call))


@pytest.mark.parametrize(
    ("call", "read", "says"),
    [
        (
            LINEAR,
            {"x": lambda x: x.reshape(3, 20, 2, 3, 4).swapaxes(2, 3).reshape(x.shape)},
            "x, axis K: its parts in the order 0, 3, 1, 4, 2, 5, as where 2 devices cut their shares",
        ),
        (CONV, {"x": lambda x: x.transpose(0, 2, 3, 1).reshape(x.shape)}, "x: axis C lies last in memory"),
        (
            CONV,
            {"weight": lambda w: w.reshape(4, 3, 2, 3).transpose(0, 3, 1, 2)},
            "weight: axis 1 is read as if it came last in memory",
        ),
    ],
)
def test_other_orders_of_an_input(call, read, says):
    page, inputs, params = call
    found = _with(call, **{name: change(inputs[name].values()) for name, change in read.items()})
    told = [name for name, y in generated(page, inputs, params, {}) if np.allclose(y, found, atol=1e-5)]
    assert says in told


def test_tokens_turned_by_the_positions_of_others():
    """Every second token's numbers, as where rows of positions are read at a larger stride."""
    ids = np.stack([np.arange(9), 3 * np.arange(9)], axis=-1)[None].astype(np.int32)
    params = {"axes_dim": (4, 4), "theta": 100.0, "halves": False}
    call = _call("rope", params, x=_normal(2, 9, 3, 8), ids=ids)
    read = np.minimum(2 * np.arange(9), 8)
    ((name, y),) = other_tokens(*call, _with(call, ids=ids[:, read]))
    assert np.allclose(y, _with(call, ids=ids[:, read]), atol=1e-6)
    assert name.startswith(
        "the positions' axis 0 is 2, 4, 6, 8, not 1, 2, 3, 4, 5, 6, 7, at tokens 1 to 7 of item 0"
    )


def test_the_first_or_last_tokens_alone_are_elsewhere_or_not_rotated():
    """Of text and picture, as Z-Image has them, whose first axis alone counts on."""
    ids = np.zeros((1, 9, 2), np.int32)
    ids[0, :4, 0], ids[0, 4:] = 1 + np.arange(4), [[5, k] for k in range(5)]
    call = _call("rope", {"axes_dim": (4, 4), "theta": 100.0, "halves": False}, x=_normal(2, 9, 3, 8), ids=ids)

    def named(found):
        return [name for name, y in other_tokens(*call, found) if np.allclose(y, found, atol=1e-6)]

    for some, axis, by, words in (
        (np.s_[:4], 0, 1, "the positions' axis 0 is 1 more, at tokens 0 to 3 of item 0"),
        (np.s_[:4], 0, -1, "the positions' axis 0 is 1 less, at tokens 0 to 3 of item 0"),
        (np.s_[4:], 1, 6, "the positions' axis 1 is 6 more, at tokens 4 to 8 of item 0"),
    ):
        moved = ids.copy()
        moved[0, some, axis] += by
        assert named(_with(call, ids=moved)) == [words]
    bare = _with(call)
    bare[:, :4] = call[1]["x"].values()[:, :4]
    assert named(bare) == ["the positions' axis 0 is 0, not 1, 2, 3, 4, at tokens 0 to 3 of item 0"]


def test_positions_of_several_items_are_solved_for():
    """Of a batch whose items have texts of other lengths; channels in pairs and in halves."""
    ids = np.zeros((2, 9, 2), np.int32)
    ids[0, 4:] = [[5, k] for k in range(5)]
    ids[1, 6:] = [[7, k] for k in range(3)]
    for halves in (False, True):
        params = {"axes_dim": (4, 4), "theta": 100.0, "halves": halves}
        call = _call("rope", params, x=_normal(2, 9, 3, 8), ids=ids)
        moved = ids.copy()
        moved[0, 4:, 0], moved[1, 6:, 1] = 9, moved[1, 6:, 1] - 2
        ((name, y),) = other_tokens(*call, _with(call, ids=moved))
        assert np.allclose(y, _with(call, ids=moved), atol=1e-6)
        assert name == (
            "the positions' axis 0 is 9, not 5, at tokens 4 to 8 of item 0; "
            "the positions' axis 1 is 2 less, at tokens 6 to 8 of item 1"
        )
        both = ids.copy()
        both[:, 6:, 1] += 1
        ((name, _),) = other_tokens(*call, _with(call, ids=both))
        assert name == "the positions' axis 1 is 1 more, at tokens 6 to 8 of items 0 and 1"
        assert not [*other_tokens(*call, _with(call))]
        assert not [*other_tokens(*call, _normal(2, 9, 3, 8) + 1)], "no position gives it"


def test_functions_are_the_operations_own():
    """Each activation's own function, as the table has it, is the operation; no other one is."""
    x = _normal(5, 40)
    for op in NAMES:
        page, inputs, params = _call(op, x=x)
        right = answer(page, inputs, params)
        values = {"x": x.astype(np.float64)}
        named = {name for name, y in other_functions(op, values, params) if np.allclose(y, right, atol=1e-6)}
        assert not named, op


def test_a_gate_of_another_function():
    x = _normal(5, 40)
    gate, value = np.split(x.astype(np.float64), 2, -1)
    answers = dict(other_functions("swiglu", {"x": x.astype(np.float64)}, {}))
    mish = gate * np.tanh(np.log1p(np.exp(gate))) * value
    assert [name for name, y in answers.items() if np.allclose(y, mish)] == ["Mish for SiLU"]


def test_positions_and_frequencies_of_few_bits():
    import ml_dtypes

    x, ids = _normal(1, 9, 2, 8).astype(np.float64), (np.arange(9, dtype=np.int32) * 37)[None, :, None]
    coarse = lambda t: np.asarray(t, np.float64).astype(ml_dtypes.bfloat16).astype(np.float64)
    angle = coarse(coarse(ids[..., 0, None]) * coarse(100.0 ** (-np.arange(0, 8, 2) / 8)))[:, :, None]
    one, two = x[..., ::2], x[..., 1::2]
    parts = one * np.cos(angle) - two * np.sin(angle), one * np.sin(angle) + two * np.cos(angle)
    found = np.stack(parts, -1).reshape(x.shape)
    params = {"axes_dim": (8,), "theta": 100.0, "halves": False}
    named = [n for n, y in rope_steps("rope", {"x": x, "ids": ids}, params) if np.allclose(y, found, atol=1e-12)]
    assert named == ["positions, frequencies and angles rounded to bfloat16"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ids: ids / 8, "positions are multiplied by 0.125"),
        (lambda ids: ids + 1, "positions are one more"),
    ],
)
def test_other_positions(change, says):
    x, ids = _normal(1, 9, 2, 8), (np.arange(9, dtype=np.int32) * 3)[None, :, None]
    angle = (change(ids[..., 0, None].astype(np.float64)) * 100.0 ** (-np.arange(0, 8, 2) / 8))[:, :, None]
    turned = (x[..., ::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    found = np.stack([turned.real, turned.imag], -1).reshape(x.shape)
    params = {"axes_dim": (8,), "theta": 100.0, "halves": False}
    values = {"x": x.astype(np.float64), "ids": ids}
    assert [n for n, y in rope_steps("rope", values, params) if np.allclose(y, found, atol=1e-6)] == [says]


def test_rows_at_another_stride():
    x = _normal(2, 4, 11)
    read = {name: change(x) for name, change in of_strides("x", x)}
    flat = x.ravel()
    np.testing.assert_array_equal(
        read["x: its rows are sought at a stride of 10 numbers, not 11"][0, 2], flat[20:31]
    )
    np.testing.assert_array_equal(
        read["x: its rows are sought at a stride of 1 number, not 11, from where the first item begins"][1, 3],
        flat[7:18],
    )


def test_tiles_of_a_row_at_another_stride():
    x = _normal(3, 12)
    read, flat = {name: change(x) for name, change in of_strides("x", x)}, [*x.ravel(), *np.zeros(24)]
    far = read["x: rows are read 4 at a time, from an address that advances by 16"]
    np.testing.assert_array_equal(far[2], [*flat[24:28], *flat[40:44], *flat[56:60]])
    near = read["x: rows are read 2 at a time, from an address that advances by 1"]
    np.testing.assert_array_equal(near[1, :6], [flat[12 + i] for i in (0, 1, 1, 2, 2, 3)])


def test_rows_of_two_inputs_at_the_stride_of_the_other():
    x, y = _normal(2, 4, 11), _normal(2, 4, 3)
    (phrase, read), *_ = of_other_strides({"x": x, "y": y, "flat": _normal(4, 3)})
    assert phrase == "rows of x are sought at the stride of y's, and the reverse"
    np.testing.assert_array_equal(read["x"][1, 2], x.ravel()[44 + 6 :][:11])
    np.testing.assert_array_equal(read["y"][0, 2], [*y.ravel()[22:], 0])
    assert not [*of_other_strides({"x": x, "y": x})]


def test_memory_that_is_not_moved():
    call = _call("patchify", {"patch": 2}, x=_normal(2, 3, 4, 6))
    named = dict(generated(*call, {}))
    np.testing.assert_array_equal(
        named["nothing is moved: x as it lies in memory"].ravel(), call[1]["x"].values().ravel()
    )


def test_slices_at_other_places():
    truth = RNG.standard_normal((6, 5, 40))
    honest = truth * (1 + 2.0**-24 * RNG.standard_normal(truth.shape))
    found = honest[:, [0, 1, 2, 2, 3]].copy()
    found[:, 2] = RNG.standard_normal((6, 40))
    (cause,) = fitted_causes(found, truth, honest, -1, {})
    assert cause.startswith("right slices stand at other places: ") and "axis 1" in cause


SOFTMAX = _call("softmax", {"scale": 0.5}, x=_normal(3, 4, 20))


@pytest.mark.parametrize("call", [CONV, LINEAR, ROWS, SOFTMAX], ids=["conv2d", "linear", "layer_norm", "softmax"])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda call: _with(call, x=3 * call[1]["x"].values()),
        lambda call: _with(call, x=call[1]["x"].values() + np.float32(0.25)),
        lambda call: _with(call, x=np.roll(call[1]["x"].values(), 1)),
        lambda call: _with(call).astype(np.float16),
        lambda call: -0.2 * _with(call),
        lambda call: _normal(*_with(call).shape),
    ],
    ids=["scaled", "moved", "rolled", "rounded", "turned", "noise"],
)
def test_a_line_out_of_reach_is_what_the_search_would_not_find(call, wrong, monkeypatch):
    found = wrong(call)
    short = _named(fitted, call, found)
    monkeypatch.setattr(fitted_constants, "_out_of_reach", lambda *_: False)
    whole = _named(fitted, call, found)
    assert [name for name, _ in short] == [name for name, _ in whole]
    assert all(np.array_equal(one, other) for (_, one), (_, other) in zip(short, whole, strict=True))


def test_few_answers_tell_that_no_constant_explains_a_linear_operation(monkeypatch):
    count = 0

    def counted(*arguments):
        nonlocal count
        count += 1
        return answer(*arguments)

    found = _with(CONV).astype(np.float16)
    monkeypatch.setattr(fitted_constants, "answer", counted)
    assert not _named(fitted, CONV, found)
    assert 0 < count < 60  # six a number of three inputs, and the right answer; the search takes 78 a number
