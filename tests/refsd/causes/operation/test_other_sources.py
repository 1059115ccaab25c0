"""Entries, rows, terms and codes that an engine reads by another rule are named, and nothing else is."""

import ml_dtypes
import numpy as np
import pytest

from refsd.cases import CASES
from refsd.causes.operation.block_parts import parts_of, wrong_values
from refsd.causes.operation.code_values import grid_entries, other_layouts
from refsd.causes.operation.other_entries import other_entries
from refsd.causes.operation.product_terms import _read_on, product_terms
from refsd.causes.operation.row_sums import _of_other_memory, row_sums
from refsd.golden.mutations import answer
from refsd.golden.operations import OPERATIONS
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.tensor import stored

RNG = np.random.default_rng(8)


def _call(op, params=None, **shapes):
    page = OPERATIONS[op]
    tensors = {name: stored(RNG.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}
    return page, tensors, page.complete(tensors, params or {})


LINEAR = _call("linear", x=(3, 21, 37), weight=(10, 37), bias=(10,))
GROUPS = _call("group_norm", {"num_groups": 4}, x=(2, 12, 5, 7), weight=(12,), bias=(12,))
NORM = _call("layer_norm", x=(2, 9, 33), weight=(33,), bias=(33,))


def _named(family, call, found):
    return [(name, y) for name, y in family(*call, np.asarray(found, np.float64))]


def _values(call):
    return {name: tensor.values().astype(np.float64) for name, tensor in call[1].items()}


@pytest.mark.parametrize(
    ("rule", "read"),
    [
        ("by the place along all rows, modulo 10", lambda row, o: row % 10),
        ("that of the first of each 4 along axis O", lambda row, o: o // 4 * 4),
        ("counted from the end", lambda row, o: 9 - o),
    ],
)
def test_entries_of_a_bias(rule, read):
    bias = _values(LINEAR)["bias"]
    row, o = np.arange(63).reshape(3, 21, 1), np.arange(10)
    found = answer(*LINEAR) - bias + bias[read(row, o + 0 * row)]
    told = _named(other_entries, LINEAR, found)
    assert told[0][0] == f"entries of bias are read {rule}", told
    np.testing.assert_allclose(told[0][1], found, rtol=1e-4, atol=1e-5)


def test_statistics_of_another_row():
    v = _values(NORM)
    rows = v["x"].reshape(18, 33)
    first = rows[np.arange(18) // 3 * 3]
    y = (rows - first.mean(1, keepdims=True)) / np.sqrt(first.var(1, keepdims=True) + NORM[2]["eps"])
    found = y.reshape(v["x"].shape) * v["weight"] + v["bias"]
    told = _named(row_sums, NORM, found)
    assert told[0][0] == "mean and variance of a row: that of the first of each 3 along the rows", told


@pytest.mark.parametrize(
    ("says", "memory"),
    [
        ("in which the axes lie as [0, 2, 3, 1]", lambda x: x.transpose(0, 2, 3, 1)),
        ("with a margin of 2 around each channel", lambda x: np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))),
    ],
)
def test_statistics_of_other_memory(says, memory):
    x, weight, bias = (_values(GROUPS)[name] for name in ("x", "weight", "bias"))
    read = memory(x).ravel()[: x.size].reshape(2, 4, -1, 1, 1)
    groups, eps = x.reshape(2, 4, -1, 5, 7), GROUPS[2]["eps"]
    y = (groups - read.mean(2, keepdims=True)) / np.sqrt(read.var(2, keepdims=True) + eps)
    found = y.reshape(x.shape) * weight[:, None, None] + bias[:, None, None]
    told = _named(row_sums, GROUPS, found)
    assert len(told) == 1 and f"mean and variance are read from memory {says}" in told[0][0], told
    np.testing.assert_allclose(told[0][1], found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("behind", [0, 1], ids=["zeros", "other memory"])
def test_sums_that_end_with_a_whole_block(behind):
    """A product that sums whole blocks of 16 reads 11 numbers of the next rows, behind the last what is there."""
    v = _values(LINEAR)
    rows = [np.append(t.ravel(), behind * np.sin(np.arange(11.0))) for t in (v["x"], v["weight"])]
    x, weight = (np.stack([t[i : i + 48] for i in range(0, len(t) - 11, 37)]) for t in rows)
    found = (x @ weight.T).reshape(3, 21, 10) + v["bias"]
    told = _named(product_terms, LINEAR, found)
    assert [name for name, _ in told] == ["sums of 37 terms go on for 11 terms more, behind the ends of the rows"]
    np.testing.assert_allclose(told[0][1], found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "chosen", "count", "says"),
    [
        (
            LINEAR,
            np.s_[:, 32:],
            0,
            "the last 5 of 37 along the inputs, after the last whole block of 8 are not summed",
        ),
        (LINEAR, np.s_[:, 3], -1, "index 3 of 37 along the inputs are subtracted"),
        (LINEAR, np.s_[:, 4:6], 0.5, "indices 4 to 5 of 37 along the inputs count 0.5 times"),
    ],
)
def test_terms_of_a_product(call, chosen, count, says):
    page, inputs, params = call
    weight = _values(call)["weight"]
    weight[chosen] *= count
    found = answer(page, {**inputs, "weight": stored(weight.astype(np.float32))}, params)
    told = _named(product_terms, call, found)
    assert told and told[0][0].startswith(says.split(",")[0]) and told[0][0].endswith(says.split(" ")[-1]), told
    np.testing.assert_allclose(told[0][1], found, rtol=1e-3, atol=1e-4)


def test_few_sums_tell_the_counts_of_blocks():
    """One row of 16 sums over 192 terms: a lane of 32 is added twice, another is lost."""
    call = _call("linear", x=(1, 192), weight=(16, 192), bias=(16,))
    v, count = _values(call), np.ones(192)
    count[32:64], count[160:] = 2, 0
    found = (v["x"] * count) @ v["weight"].T + v["bias"]
    told = _named(product_terms, call, found)
    assert told and "the last 32 of 192 along the inputs" in told[0][0] and "are not summed" in told[0][0], told
    assert "indices 32 to 63 of 192 along the inputs are summed twice" in told[0][0], told
    np.testing.assert_allclose(told[0][1], found, rtol=1e-3, atol=1e-3)


def test_sums_divided_by_another_count():
    """The mean of 33 numbers is their sum over 32, that of whole blocks; the variance as well."""
    v = _values(NORM)
    mean, square = v["x"].sum(-1, keepdims=True) / 32, (v["x"] ** 2).sum(-1, keepdims=True) / 32
    found = (v["x"] - mean) / np.sqrt(square - mean**2 + NORM[2]["eps"]) * v["weight"] + v["bias"]
    told = _named(row_sums, NORM, found)
    assert told[0][0] == "mean and variance are sums over 33 numbers, divided by 32", told


@pytest.mark.parametrize("centred", [True, False])
def test_sums_times_a_share_that_is_rounded(centred):
    """1 / 33 is a bfloat16: a share of 0.0302734."""
    call = NORM if centred else _call("rms_norm", x=(2, 9, 33), weight=(33,))
    v, share = _values(call), float(ml_dtypes.bfloat16(1 / 33))
    mean = v["x"].sum(-1, keepdims=True) * share * centred
    square = ((v["x"] - mean) ** 2).sum(-1, keepdims=True) * share
    found = (v["x"] - mean) / np.sqrt(square + call[2]["eps"]) * v["weight"] + v.get("bias", 0)
    told = _named(row_sums, call, found)
    assert told[0][0] == "mean and variance are sums multiplied by 0.0302734, not by 1 / 33 = 0.030303", told
    np.testing.assert_allclose(told[0][1], found, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("block", "own"), [(32, "weight"), (16, "inputs")])
def test_a_last_tile_that_is_whole(block, own):
    """37 terms in tiles: of the last one a factor goes on behind its row, of the other what was there remains."""
    v = _values(LINEAR)
    x, rest = v["x"].reshape(63, 37), 37 % block
    rows = {"inputs": x, "weight": v["weight"]}
    more = {name: t[:, 37 - block : 37 - rest] for name, t in rows.items()}
    memory = np.append(rows[own].ravel(), np.zeros(block))
    more[own] = np.stack([memory[37 * i + 37 :][: block - rest] for i in range(len(rows[own]))])
    found = (x @ v["weight"].T + more["inputs"] @ more["weight"].T + v["bias"]).reshape(3, 21, 10)
    told = _named(product_terms, LINEAR, found)
    says = f"the last tile of {block} terms is whole: behind the {own} lies the next row"
    assert [name for name, _ in told if name.startswith(says)], told
    np.testing.assert_allclose(told[-1][1], found, rtol=1e-3, atol=1e-3)


def _never(*_):
    raise AssertionError("this is computed although what comes before it explains the answer")
    yield


def test_no_memory_is_read_where_another_row_explains_a_norm(monkeypatch):
    monkeypatch.setattr("refsd.causes.operation.row_sums._of_other_memory", _never)
    test_statistics_of_another_row()


def test_one_memory_at_a_time_is_made(monkeypatch):
    margins, pad = [], np.pad
    monkeypatch.setattr(np, "pad", lambda *told: margins.append(told) or pad(*told))
    memories = _of_other_memory(_values(GROUPS)["x"], (8, 105), True)
    next(memories)
    assert not margins
    assert len([*memories]) == 7 and len(margins) == 3


def test_no_sum_is_read_on_where_the_terms_explain_a_product(monkeypatch):
    monkeypatch.setattr("refsd.causes.operation.product_terms._read_on", _never)
    page, inputs, params = LINEAR
    weight = _values(LINEAR)["weight"]
    weight[:, 3] *= -1
    found = answer(page, {**inputs, "weight": stored(weight.astype(np.float32))}, params)
    name, _ = next(product_terms(page, inputs, params, np.asarray(found, np.float64)))
    assert name == "index 3 of 37 along the inputs are subtracted"


def test_a_long_product_is_summed_whole_only_where_a_sample_fits(monkeypatch):
    rows, weight = RNG.standard_normal((200, 64)), RNG.standard_normal((30, 64))
    sizes = []
    monkeypatch.setattr(np, "abs", lambda x, real=np.abs: sizes.append(x.size) or real(x))
    assert not [*_read_on(rows, weight, rows @ weight.T)]
    assert sizes.count(200 * 30) == 1  # the size of the answer itself


def test_what_is_no_product_is_not_expanded():
    class Stored:
        def values(self):
            raise AssertionError("expanded")

    inputs = {"x": Stored()}
    assert not [*product_terms(OPERATIONS["softmax"], inputs, {}, np.zeros((2, 3)))]  # type: ignore[arg-type]
    nan = np.full((2, 3), np.nan)
    assert not [*product_terms(OPERATIONS["linear"], inputs, {}, nan)]  # type: ignore[arg-type]


@pytest.mark.parametrize("call", [LINEAR, NORM, GROUPS])
def test_right_answers_and_noise_have_no_other_sources(call):
    right = answer(*call)
    for found in (right, right + 0.1 * RNG.standard_normal(right.shape)):
        assert not _named(product_terms, call, found) and not _named(row_sums, call, found)
        assert not [rule for rule, y in _named(other_entries, call, found) if not np.allclose(y, right)]


def _tensor(type):
    return CASES[f"dequantize/{type}/r{33 if type[0] == 'q' else 9}-d512"].realize()["x"]


def _parts(tensor):
    parts = parts_of(tensor.type, tensor.data.reshape(-1, BLOCK_TYPES[tensor.type].bytes))
    assert parts is not None
    return parts


def test_codes_of_q6_k_in_a_row():
    tensor = _tensor("q6_k")
    blocks, p = tensor.data.reshape(-1, 210), _parts(tensor)
    low = np.stack([blocks[:, :128] & 15, blocks[:, :128] >> 4], axis=2).reshape(len(blocks), 256)
    found = p._replace(low=low).values()
    told = [phrase for phrase, y in wrong_values(tensor) if np.allclose(y.ravel(), found.ravel())]
    assert told[-1] == "q6_k: the lower bits of codes are read one behind the other"


def test_scales_of_groups_that_are_any():
    tensor = _tensor("q4_k")
    p = _parts(tensor)
    found = p._replace(s=RNG.integers(1, 60, p.s.shape)).values()
    told = [phrase for phrase, y in other_layouts(tensor, found) if np.allclose(y.ravel(), found.ravel())]
    assert told == ["q4_k: codes are the right ones, each group's scale is another"]
    lowest = p.m.copy()
    lowest[:, 4:] ^= 16  # as a reader has them that takes their high bits elsewhere
    minimums = p._replace(m=lowest).values()
    told = [phrase for phrase, y in other_layouts(tensor, minimums) if np.allclose(y.ravel(), minimums.ravel())]
    assert told == ["q4_k: codes are the right ones, each group's minimum is another"]
    noise = found + RNG.standard_normal(found.shape)
    assert not [p for p, y in other_layouts(tensor, noise) if np.allclose(y.ravel(), noise.ravel())]


def test_an_entry_of_a_grid():
    tensor = _tensor("iq2_s")
    blocks = tensor.data.reshape(-1, 82)
    right = np.asarray(BLOCK_TYPES["iq2_s"].dequantize(blocks), np.float64)
    row = blocks[:, 2:34] | (blocks[:, 66:74, None] >> np.arange(0, 8, 2) & 3).reshape(-1, 32).astype(int) << 8
    found = right.reshape(-1, 32, 8).copy()
    found[row == row[0, 0], 3] *= 1.25
    told = [phrase for phrase, _ in grid_entries(tensor, found.reshape(tensor.shape))]
    assert told == ["iq2_s: 1 entries of its grid are 1.25 times the right ones"]
    found[5] *= 1.25
    assert not [*grid_entries(tensor, right.reshape(tensor.shape))]
    assert not [*grid_entries(tensor, found.reshape(tensor.shape))]
