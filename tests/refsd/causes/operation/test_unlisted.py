"""Bugs that no page lists: each is put into an answer, and named by the judge of operations."""

import re

import ml_dtypes
import numpy as np
import pytest
from naming import named

from refsd.cases import CASES, select
from refsd.causes.operation.block_parts import parts_of
from refsd.causes.operation.declared import letters
from refsd.causes.operation.generated_mutants import generated
from refsd.causes.operation.steps import stepwise
from refsd.causes.operation.unlisted import _all, _finders, explaining, most_bugs, unlisted
from refsd.golden.mutations import answer, widened
from refsd.golden.operations import OPERATIONS
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.tensor import StoredTensor, stored

# A search has some seconds of CPU.
pytestmark = pytest.mark.jitted

SELF = "attention/f32/self-b2-l35-j35-h2-d40"
LOKR = next(name for name in CASES if name.startswith("lokr/") and 4 in CASES[name].inputs["w1"].shape[:1])
HEADS = "rms_norm/f32/heads-x2x20x3x128"
PAIR = np.arange(77) // 2
CAPPED = next(name for name in CASES if name.startswith("attention_softcap/"))
TIME = next(name for name in CASES if name.startswith("timestep_embedding/f32/"))
CONV = "conv2d/f32/3x3-n2-c33-k20-h9-w14"


def other(**changes):
    return lambda op, inputs, params: answer(op, inputs, {**params, **changes})


def of_slices(name, axis, source):
    """An input's slices along an axis are others: source has one index for each; -1 for zeros."""

    def wrong(op, inputs, params):
        x = inputs[name].values()
        changed = np.where(
            np.expand_dims(np.array(source) < 0, [*range(x.ndim - 1)]).swapaxes(axis, -1), 0, x.take(source, axis)
        )
        return answer(op, {**inputs, name: stored(changed.astype(np.float32))}, params)

    return wrong


def times(name, factor):
    def wrong(op, inputs, params):
        return answer(op, {**inputs, name: stored(np.float32(factor) * inputs[name].values())}, params)

    return wrong


def _last_row_and_column_lost(op, inputs, params):
    x = inputs["x"].values()
    return answer(op, {**inputs, "x": stored(np.pad(x[..., :-1, :-1], ((0, 0), (0, 0), (0, 1), (0, 1))))}, params)


def _with_eight_groups(op, inputs, params):
    return answer(op, inputs, {**params, "num_groups": 8})


@pytest.mark.parametrize(
    ("case", "wrong", "cause"),
    [
        ("group_norm/f32/flat-n3-c64-h1-w1-g4", _with_eight_groups, "num_groups is 8, not 4"),
        ("rms_norm/f32/tiny-x33x320", other(eps=3e-5), "eps is 3e-05, not 1e-06"),
        ("rope/f32/flux-n2-l20-h3-d128", other(theta=1234.0), "theta is 1234, not 1e+04"),
        (
            "attention/f32/self-b2-l35-j35-h2-d40",
            other(scale=80**-0.5),
            "scale is 1/sqrt(H D) = 0.1118, not 0.1581",
        ),
        # sqrt(2) / sqrt(D), too
        (
            "attention/f32/cross-b2-l20-j77-h2-d40",
            other(scale=20**-0.5),
            "scale is 1/sqrt(L) = 0.2236, not 0.1581",
        ),
        # H D is 80, and 12 / 110 is near its root; O1 is 4, and 1 over its root is a half.
        (SELF, other(scale=0.109), "scale is 0.109, not 0.1581"),
        (LOKR, times("w1", 0.5), "the result is multiplied by 0.5"),
        ("linear/f32/awkward-x2x33x77-o20", times("bias", 2), "bias is multiplied by 2"),
        ("group_norm/f32/plain-n2-c64-h9-w7-g32", other(num_groups=16), "num_groups is 16, not 32"),
        (
            "conv2d/f32/uneven-n1-c7-k20-h14-w17",
            other(padding=(1, 3, 0, 1)),
            "padding is (1, 3, 0, 1), not (2, 2, 0, 1)",
        ),
        ("leaky_relu/f32/bend-x33x77", other(slope=0.3), "slope is 0.3, not 0.2"),
        # Where the answer waves, only the grid of usual values meets the right one.
        (TIME, times("t", 100), "t is multiplied by 100"),
    ],
)
def test_constants_are_fitted_and_named(case, wrong, cause):
    assert named(case, wrong)[0] == cause


def test_a_root_that_is_a_plain_number_is_told_as_that_and_each_number_once():
    causes = named("attention/f32/wide-b1-l16-j132-h1-d128", other(scale=0.25))
    # Whether the same factor in q or k explains as much is a matter of last bits.
    assert causes[0] == "scale is 0.25, not 0.08839" and len(causes) == len(set(causes))
    root = "scale is 1/sqrt(L) = 0.25, not 0.08839"
    assert root in causes and {*causes[1:]} <= {root, "q is multiplied by 2.828", "k is multiplied by 2.828"}


@pytest.mark.parametrize(
    "case", ["attention/f32/causal-b1-l128-j128-h2-d32", "attention/f16/sums-b1-l20-j320-h2-d40"]
)
def test_all_formulas_that_give_the_number_are_told_so_that_cases_can_agree(case):
    """1/sqrt(H D) is 1/8 in one case, and the root of the root of L J in another."""
    D = CASES[case].inputs["q"].shape[-1]
    causes = named(case, other(scale=(2 * D) ** -0.5))
    assert any("1/sqrt(H D) = " in cause for cause in causes) and len(causes) == len({*causes})
    assert not [cause for cause in causes if " E)" in cause or "G" in cause]


def _zero_keys(op, inputs, params):
    more = {n: stored(np.pad(inputs[n].values(), ((0, 0), (0, 29), (0, 0), (0, 0)))) for n in ("k", "v")}
    return answer(op, {**inputs, **more}, params)


def _other_axis(op, inputs, params):
    q, k, v = (inputs[n].values().astype(np.float64).transpose(0, 2, 1, 3) for n in ("q", "k", "v"))
    s = np.exp(q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5)
    return (s / s.sum(axis=2, keepdims=True) @ v).transpose(0, 2, 1, 3)


def _tiles_by_columns(op, inputs, params):
    weight = np.copy(inputs["weight"].values())
    for i in range(0, len(weight) - 7, 8):
        for j in range(0, weight.shape[1] - 7, 8):
            weight[i : i + 8, j : j + 8] = weight[i : i + 8, j : j + 8].T.copy()
    return answer(op, {**inputs, "weight": stored(weight)}, params)


def _wide(x, padding):
    """Each row with what lies before and behind it in memory, all planes after one another."""
    flat = np.concatenate([np.zeros(padding[0]), x.ravel(), np.zeros(padding[1])]).astype(np.float32)
    W, more = x.shape[-1], sum(padding)
    rows = [flat[i * W : (i + 1) * W + more] for i in range(x.size // W)]
    return np.stack(rows).reshape(*x.shape[:-1], -1)


def _rows_around(op, inputs, params):
    wide = _wide(inputs["x"].values(), params["padding"][-2:])
    return answer(op, {**inputs, "x": stored(wide)}, {**params, "padding": (*params["padding"][:-2], 0, 0)})


def _minimums_by_halves(op, inputs, params):
    """Each 16 of Q5_K have the minimum that the codes' place among the bytes suggests."""
    tensor = inputs["weight"]
    blocks = tensor.data.reshape(-1, 176)
    m, mins = blocks[:, 8:12] & 63, blocks[:, 12:16] >> 4 | blocks[:, 8:12] >> 6 << 4
    least = np.concatenate([m, mins], axis=1).astype(np.float64)
    dmin = blocks[:, 2:4].copy().view(np.float16).astype(np.float64)
    wrong = least.reshape(-1, 4, 1, 2).repeat(2, axis=2).reshape(len(m), 16)
    apart = (np.repeat(least, 32, axis=1) - np.repeat(wrong, 16, axis=1)) * dmin
    weight = tensor.values().astype(np.float64) + apart.reshape(tensor.shape)
    return answer(op, {**inputs, "weight": stored(weight.astype(np.float32))}, params)


def _before_the_last(op, inputs, params):
    """Columns are limited to the last but one."""
    x = inputs["x"].values().copy()
    x[..., -1] = x[..., -2]
    return answer(op, {"x": stored(x)}, params)


def _packed_gates(op, inputs, params):
    """SwiGLU's gates, the first half of each row, lie D apart, not 2 D."""
    x = inputs["x"].values()
    D = x.shape[-1] // 2
    gates = x.reshape(-1, D)[: x.size // 2 // D].reshape(*x.shape[:-1], D).astype(np.float64)
    return gates / (1 + np.exp(-gates)) * x[..., D:]


def _far_partners(op, inputs, params):
    """Frequencies are right; a channel's partner is half of the whole head away."""
    x, half = inputs["x"].values().astype(np.float64), params["axes_dim"][0] // 2
    angle = inputs["ids"].values() * params["theta"] ** -(np.arange(half) / half)
    far = x.shape[-1] // 2
    one, two = x[..., :half].copy(), x[..., far : far + half].copy()
    cos, sin = np.cos(angle)[:, :, None], np.sin(angle)[:, :, None]
    x[..., :half], x[..., far : far + half] = one * cos - two * sin, one * sin + two * cos
    return x


def _first_128(op, inputs, params):
    """A row's scale in int8 is that of its first 128 numbers."""
    x, weight = (inputs[name].values().astype(np.float32) for name in ("x", "weight"))
    scale = np.abs(x[:, :128]).max(-1, keepdims=True) / np.float32(127)
    codes = np.rint(x / scale).clip(-128, 127)
    return codes @ weight.T * (scale * inputs["weight_scale"].values()) + inputs["bias"].values()


def _keys_held_otherwise(op, inputs, params):
    """Channels of k stand in blocks of 64 as 16 threads hold them, those of q do not."""
    k = inputs["k"].values()
    held = k.reshape(*k.shape[:-1], -1, 16, 2, 2).swapaxes(-3, -2).reshape(k.shape)
    return answer(op, {**inputs, "k": stored(np.ascontiguousarray(held))}, params)


def _of_four_devices(op, inputs, params):
    """Each device has a fourth of the tokens, and sees no others."""
    parts = {name: np.array_split(inputs[name].values(), 4, axis=1) for name in "qkv"}
    each = [{name: stored(np.ascontiguousarray(of[i])) for name, of in parts.items()} for i in range(4)]
    return np.concatenate([answer(op, own, params) for own in each], axis=1)


def _text_at_the_end(op, inputs, params):
    """Each of two devices has half of the first 27 tokens, and sees the 8 behind as well; these see one half."""
    q, k, v = (inputs[name].values() for name in "qkv")
    y = np.empty_like(q)
    for rows, own in ((np.r_[:14, 27:35], np.arange(14)), (np.arange(14, 27), np.arange(14, 27))):
        seen = np.r_[own, 27:35]
        parts = {name: x[:, at].copy() for name, x, at in (("q", q, rows), ("k", k, seen), ("v", v, seen))}
        y[:, rows] = answer(op, {name: stored(x) for name, x in parts.items()}, params)
    return y


def _in_four_parts(op, inputs, params):
    """Each fourth of a row has a mean and a variance of its own."""
    x, weight, bias = (inputs[name].values().astype(np.float64) for name in ("x", "weight", "bias"))
    parts = x.reshape(*x.shape[:-1], 4, -1)
    y = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + params["eps"])
    return y.reshape(x.shape) * weight + bias


def _rows_of_a_wide_table(op, inputs, params):
    """A table of cosines, then sines, is read as if its rows were as long as a head."""
    x, ids = inputs["x"].values().astype(np.float64), inputs["ids"].values()[..., 0]
    n = params["axes_dim"][0]
    angle = np.arange(2 * ids.max() + 3)[:, None] * params["theta"] ** (-np.arange(0, n, 2) / n)
    table = np.concatenate([np.cos(angle), np.sin(angle)], axis=1).ravel()
    at = ids[..., None] * x.shape[-1] + np.arange(n // 2)
    cos, sin = table[at][:, :, None], table[at + n // 2][:, :, None]
    one, two, rest = np.split(x, [n // 2, n], axis=-1)
    return np.concatenate([one * cos - two * sin, two * cos + one * sin, rest], axis=-1)


def of_blocks(name, change):
    """The blocks of an input are put together wrongly. change: their parts -> others"""

    def wrong(op, inputs, params):
        tensor = inputs[name]
        parts = parts_of(tensor.type, tensor.data.reshape(-1, BLOCK_TYPES[tensor.type].bytes))
        values = change(parts, tensor.data).values().reshape(tensor.shape).astype(np.float32)
        return answer(op, {**inputs, name: stored(values)}, params)

    return wrong


def _high_bits_in_a_row(parts, data):
    return parts._replace(high=np.unpackbits(data.reshape(-1, 110)[:, :32], axis=1, bitorder="little"))


OF_BLOCKS = {
    "the higher bits of codes are read one behind the other": ("linear/q3_k/*", "weight", _high_bits_in_a_row),
    "scales of the next block": ("linear/q8_0/*", "weight", lambda p, _: p._replace(d=np.roll(p.d, -1, 0))),
    "minimums of groups: neighbours swapped": (
        "linear/q4_k/*",
        "weight",
        lambda p, _: p._replace(m=p.m[:, np.arange(8) ^ 1]),
    ),
}


@pytest.mark.parametrize("says", OF_BLOCKS)
def test_blocks_of_a_product_that_are_read_wrongly(says):
    cases, name, change = OF_BLOCKS[says]
    case = select(cases)[0]
    told = named(case.name, of_blocks(name, change))
    assert told and told[0].endswith(f": {says}"), told


def _up_to_240(op, inputs, params):
    """Numbers of E4M3 that end where FNUZ's do, under E4M3's scale."""
    x, weight = (inputs[name].values().astype(np.float32) for name in ("x", "weight"))
    scale = np.abs(x).max() / np.float32(448)
    codes = (x / scale).astype(ml_dtypes.float8_e4m3fn).astype(np.float32).clip(-240, 240)
    return codes @ weight.T * scale * inputs["weight_scale"].values() + inputs["bias"].values()


def _beyond_240(op, inputs, params):
    """Of rows with such a scale of a block nothing but NaN is left."""
    x, given = inputs["x"].values().astype(np.float32), inputs["x_scale"].values()
    scales = np.abs(x.reshape(len(x), -1, 16)).max(-1) / 6 / given
    return np.where((scales > 248).any(-1, keepdims=True), np.nan, answer(op, inputs, params))


def _no_sign(op, inputs, params):
    y = answer(op, inputs, params)
    for axis, before in enumerate(params["padding"][::2], 2):
        y.swapaxes(0, axis)[:before] = inputs["bias"].values()[:, None, None]
    return y


def _groups_of_inputs(op, inputs, params):
    """Filters lie as [K / groups, groups, C / groups, taps]."""
    weight, groups = inputs["weight"].values(), params["groups"]
    lying = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(0, 1).reshape(weight.shape)
    return answer(op, {**inputs, "weight": stored(np.ascontiguousarray(lying))}, params)


def _channels_last(op, inputs, params):
    """An engine of channels last, around which nothing turns the tensors."""
    turned = {
        n: stored(x.values().transpose(0, 2, 3, 4, 1).reshape(x.shape)) for n, x in inputs.items() if n != "bias"
    }
    y = answer(op, {**inputs, **turned}, params)
    return y.reshape(y.shape[0], *y.shape[2:], y.shape[1]).transpose(0, 4, 1, 2, 3)


MAXIMA = [name for name in CASES if name.startswith("max_pool2d/f32/")]


@pytest.mark.parametrize("name", MAXIMA)
def test_a_maximum_that_starts_at_zero_is_told_even_where_nothing_but_zeros_comes(name):
    assert (
        len(MAXIMA) == 3 and named(name, lambda *call: np.maximum(answer(*call), 0))[0] == "the maximum starts at 0"
    )


@pytest.mark.parametrize(
    ("case", "wrong", "cause"),
    [
        (
            "linear/f32/awkward-x2x33x77-o20",
            _tiles_by_columns,
            "weight: every square of 8 x 8 is transposed",
        ),
        (
            "conv3d/f32/3x3x3-n2-c6-k8-d5-h7-w9",
            _channels_last,
            "x and weight lie with channels last in memory, as the answer",
        ),
        (
            "conv3d/f32/3x3x3-n2-c6-k8-d5-h7-w9",
            _rows_around,
            "no border left and right: the rows before and behind are read there, as neighbouring memory"
            ", all planes",
        ),
        ("resize_nearest/f32/up-n2-c3-h5-w7-to8x16", _before_the_last, "last column never read"),
        ("swiglu/f32/x2x33x154", _packed_gates, "the first half read as if its rows were packed"),
        ("rope/f32/partial-halves-n1-l12-h2-d40", _far_partners, "pairs half the whole head apart"),
        ("linear_int8/tokens-x77x320-o33", _first_128, "activations' scale from the first 128 numbers alone"),
        (
            "attention/f32/wide-b1-l16-j132-h1-d128",
            _keys_held_otherwise,
            "k, axis D: each 64 transposed as 16 x 2, 2 together",
        ),
        (
            "attention/f32/cube-b2-l16-j16-h16-d16",
            _of_four_devices,
            "tokens see their own share alone, as 4 devices cut all",
        ),
        (
            SELF,
            _text_at_the_end,
            "tokens see their own share and all behind the first 27, as 2 devices cut the first 27 and the others",
        ),
        (
            "layer_norm/f32/tiny-x33x320",
            _in_four_parts,
            "mean and variance are those of each 80 of 320, as 4 devices share a row",
        ),
        (
            "rope/f32/partial-halves-n1-l12-h2-d40",
            _rows_of_a_wide_table,
            "a table of cosines and sines is read as rows of 40 numbers, 12 of both, not 24 and 12",
        ),
        (
            SELF,
            lambda op, inputs, params: 3 * answer(op, inputs, params),
            "the result is multiplied by 3",
        ),
        (
            "linear_w4a8/tokens-x77x256-o33",
            of_slices("group_scale", 1, [*np.arange(16) // 4 * 4]),
            "group_scale, axis G: the first of each 4 is read for all of them",
        ),
        ("linear_fp8/tokens-x77x320-o33", _up_to_240, "numbers beyond 240, FNUZ's largest, limited to it"),
        (
            "linear_nvfp4/given-x20x128-o32",
            _beyond_240,
            "NaN where a block's scale is beyond 240, not limited",
        ),
        (
            "conv2d/f32/5x3-n2-c7-k20-h9-w13",
            _no_sign,
            "windows that begin in the padding find nothing: their place has no sign",
        ),
        (
            "conv3d/f32/groups-n1-c6-k4-d3-h5-w7",
            _groups_of_inputs,
            "filters' groups on the axis of inputs, read on that of outputs",
        ),
        (
            "linear/q5_k/tokens-x20x256-o33",
            _minimums_by_halves,
            "q5_k: minimums read by halves of groups, not by groups, in each 2",
        ),
        (SELF, _zero_keys, "axis J of k and v padded with zeros to a multiple of 32, which are read"),
        (SELF, _other_axis, "softmax over the queries, not over the keys"),
        (
            "group_norm/f32/plain-n2-c64-h9-w7-g32",
            lambda op, i, p: np.concatenate(
                [answer(op, i, p)[:1], answer(op, {**i, "x": stored(i["x"].values()[:1])}, p)]
            ),
            "second item of the batch reads the first",
        ),
        (
            "avg_pool2d/f32/border-n2-c7-h9-w12",
            _last_row_and_column_lost,
            "x: neither the last row nor the last column is read",
        ),
        (CONV, of_slices("weight", 2, [0, -1, -1]), "weight, axis R: the first slice alone is read"),
        (CONV, of_slices("weight", 3, [0, 1, -1]), "weight, axis S: the last slice is not read"),
        (CONV, of_slices("weight", 3, [1, 2, 2]), "weight, axis S: each the next"),
        (
            "linear/f8_e4m3/tokens-x9x256-o20",
            of_slices("x", 1, [i % 16 for i in range(256)]),
            "x, axis K: the first tile of 16 is read again for all",
        ),
        ("silu/f32/bend-x33x77", lambda op, i, p: np.tanh(i["x"].values()), "tanh for SiLU"),
        (
            "swiglu/f32/x2x33x154",
            lambda op, i, p: -answer(op, i, p),
            "the result is multiplied by -1 (its sign is the other)",
        ),
        ("layer_norm/f32/awkward-x33x77", lambda op, i, p: i["x"].values(), "layer_norm left out: x is the result"),
        (
            "group_norm/f32/plain-n2-c64-h9-w7-g32",
            lambda op, i, p: answer(
                op,
                i | {n: stored(i[n].values().reshape(-1, 32).T.ravel()) for n in ("weight", "bias")},
                p,
            ),
            "entries of weight and bias are read as if num_groups were their last axis, by the place along axis C",
        ),
        (
            "upsample_nearest/f32/x3-n1-c4-h6-w5",
            lambda op, i, p: i["x"].values().repeat(3, 2)[..., np.arange(15) // 2 % 5],
            "entries of x along axis 3 are read one for each 2 along axis 3, modulo 5",
        ),
    ],
)
def test_mechanisms_are_named(case, wrong, cause):
    assert named(case, wrong)[0] == cause


@pytest.mark.parametrize("case", [SELF, CONV, "layer_norm/f32/awkward-x33x77"])
def test_noise_has_no_cause(case):
    def noisy(op, inputs, params):
        y = answer(op, inputs, params)
        return y + 0.01 * np.random.default_rng(5).standard_normal(y.shape)

    assert named(case, noisy) == []


def test_letters_are_those_of_the_declaration():
    assert letters(OPERATIONS["attention"], "k", 4) == ["B", "J", "G", "D"]
    assert letters(OPERATIONS["conv2d"], "weight", 4) == ["K", "", "R", "S"]
    assert letters(OPERATIONS["linear"], "x", 3) == ["", "", "K"]


def test_what_is_generated_has_the_right_shape_and_differs():
    for name in ("conv2d/f32/groups-n2-c24-k18-h9-w11", "embedding/f32/v33-d256", "lora/f32/r3-x2x5x77-o6"):
        case = CASES[name]
        op, inputs = OPERATIONS[case.op], case.realize()
        params = op.complete(inputs, case.params)
        right = answer(op, inputs, params)
        wrong = dict(generated(op, inputs, params, OPERATIONS))
        assert wrong
        assert all(y.shape == right.shape and not np.array_equal(y, right) for y in wrong.values())


def test_every_bug_is_tried_on_every_case_of_an_operation():
    """At most 700 bugs are made of one case: none is left out, however fast the machine."""
    for case in CASES.values():
        if case.op in OPERATIONS:
            inputs = case.realize()
            op = OPERATIONS[case.op]
            assert most_bugs(op, inputs, op.complete(inputs, case.params)) >= 700, case.name


# That of which the most bugs are made, and that of which the fewest may be tried.
@pytest.mark.parametrize(
    "name", ["attention_softcap/f32/masked-b2-l33-j33-h3-d32", "conv2d/f16/tiles-n1-c33-k34-h33-w38"]
)
def test_at_most_750_bugs_are_made_of_one_case(name):
    case = CASES[name]
    op, inputs = OPERATIONS[case.op], case.realize()
    params = op.complete(inputs, case.params)
    found = answer(op, inputs, params)
    found = found + np.random.default_rng(1).standard_normal(found.shape).astype(found.dtype)
    made = sum(1 for _ in _all(_finders(op, inputs, params, found, gap=False, stepped=False), found))
    assert 300 < made <= 750 < most_bugs(op, inputs, params)


def test_as_many_unlisted_bugs_as_the_work_allows(monkeypatch):
    case = CASES[SELF]
    op, inputs = OPERATIONS[case.op], case.realize()
    params = op.complete(inputs, case.params)
    found = answer(op, inputs, params)
    all_of_them = [name for name, _ in unlisted(op, inputs, params, found)]
    monkeypatch.setattr("refsd.causes.operation.unlisted.WORK", 0)
    monkeypatch.setattr("refsd.causes.operation.unlisted._LEAST", 3)
    assert [name for name, _ in unlisted(op, inputs, params, found)] == all_of_them[:3] != all_of_them


def test_only_the_finders_that_are_asked_for_are_tried():
    case = CASES[SELF]
    op, inputs = OPERATIONS[case.op], case.realize()
    params, found_by = op.complete(inputs, case.params), dict[str, str]()
    found = answer(op, inputs, params)
    every = [name for name, _ in unlisted(op, inputs, params, found, found_by=found_by)]
    some = {name for name, _ in unlisted(op, inputs, params, found, only={"fitted", "simplest"})}
    assert some and some == {name for name in every if found_by[name] in ("fitted", "simplest")}
    assert not [*unlisted(op, inputs, params, found, only=())]


def test_bugs_that_were_tried_are_left_out():
    case = CASES[NORM]
    op, inputs = OPERATIONS[case.op], case.realize()
    params = op.complete(inputs, case.params)
    found = answer(op, inputs, params)
    every, rest = ([name for name, _ in unlisted(op, inputs, params, found, stepped=on)] for on in (False, True))
    steps = [name for name, y in stepwise(op, inputs, params) if y.shape == found.shape]
    at = every.index(steps[0])
    assert steps and every[:at] + every[at + len(steps) :] == rest


def test_explaining_keeps_no_more_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr("refsd.causes.operation.unlisted.KEPT", 100)
    tried = {}
    candidates = iter([("a", np.zeros(10)), ("b", np.zeros(10)), ("c", np.ones(10))])
    assert [*explaining(candidates, lambda y: bool(y.all()), tried)] == ["c"]
    assert [*tried] == ["a"]


NORM = "layer_norm/f32/plain-x2x77x64"


def _scaled(op, inputs, params):
    """A norm's rows before weight and bias."""
    bare = {"weight": np.ones(64, np.float32), "bias": np.zeros(64, np.float32)}
    return answer(op, {**inputs, **{name: stored(y) for name, y in bare.items()}}, params)


def _without_bias(op, inputs, params):
    return answer(op, {**inputs, "bias": stored(np.zeros(64, np.float32))}, params)


def _of_the_lane_before(op, inputs, params):
    return answer(op, {**inputs, "bias": stored(np.roll(inputs["bias"].values(), 1))}, params)


def in_part(wrong, chosen):
    """A bug in some elements alone. chosen: right answer -> mask"""

    def mixed(op, inputs, params):
        right = answer(op, inputs, params)
        return np.where(chosen(right), wrong(op, inputs, params), right)

    return mixed


def every_second_row(y):
    return np.broadcast_to((np.arange(y[..., 0].size) % 2 == 1).reshape(*y.shape[:-1], 1), y.shape)


def of_no_key(value):
    """What a query that sees no key gets. value: v -> [B, 1, H, E]"""

    def wrong(op, inputs, params):
        y = answer(op, inputs, params)
        return np.where((y == 0).all(axis=-1, keepdims=True), value(inputs["v"].values()), y)

    return wrong


def lost_keys(first, last):
    """The softmax's sum without some keys."""

    def wrong(op, inputs, params):
        q, k = (inputs[n].values().astype(np.float64) for n in "qk")
        scores = np.einsum("blhd,bjhd->blhj", q, k) * q.shape[-1] ** -0.5
        powers = np.exp(scores + np.swapaxes(inputs["mask"].values(), 1, 2) if "mask" in inputs else scores)
        lost = powers[..., first:last].sum(axis=-1) / powers.sum(axis=-1)
        return answer(op, inputs, params) / (1 - lost)[..., None]

    return wrong


def _over_heads(op, inputs, params):
    x = inputs["x"].values().astype(np.float64)
    return x / np.sqrt((x * x).mean((-2, -1), keepdims=True) + params["eps"]) * inputs["weight"].values()


def _signs(op, inputs, params):
    y = answer(op, inputs, params)
    return np.where(np.arange(y.shape[-1]) % 32 >= 24, -y, y)


@pytest.mark.parametrize(
    ("case", "wrong", "cause"),
    [
        (
            NORM,
            in_part(_scaled, lambda y: np.arange(64) >= 60),
            "weight and bias are left out, in the last 4",
        ),
        (
            NORM,
            in_part(_without_bias, every_second_row),
            "bias missing, in every 2nd index from 1 on of 154 along the rows",
        ),
        (
            NORM,
            in_part(_of_the_lane_before, lambda y: np.arange(64) % 8 >= 4),
            "bias, axis D: each the one before, in indices 4 to 7 of every 8",
        ),
        (
            "gelu_tanh/f32/bend-x33x77",
            lambda op, i, p: (lambda x: x * (1 + np.tanh(0.7978845608 * x)) / 2)(
                i["x"].values().astype(np.float64)
            ),
            "GELU (tanh) without its cube",
        ),
        (
            "attention/f32/unseen-b2-l20-j77-h2-d40",
            of_no_key(lambda v: v.mean(axis=1, keepdims=True)),
            "a query that sees no key weighs all alike",
        ),
        (
            "attention/f32/unseen-b2-l20-j77-h2-d40",
            of_no_key(lambda v: v[:, -1:]),
            "a query that sees no key sees the last",
        ),
        (SELF, lost_keys(7, 9), "the softmax's sum lacks keys 7 to 8 of 35"),
        ("attention/f32/masked-b2-l33-j33-h3-d32", lost_keys(3, 6), "the softmax's sum lacks keys 3 to 5 of 33"),
        (
            "rope/f32/partial-halves-n1-l12-h2-d40",
            other(axes_dim=(40,)),
            "the whole head is turned, not its first 24",
        ),
        (
            "linear/f16/awkward-x2x33x77-o20",
            lambda op, i, p: np.zeros_like(answer(op, i, p)) + (i["bias"].values() if "bias" in i else 0),
            "x left out: zeros|nothing is computed",
        ),
        ("dequantize/q8_0/r33-d512", _signs, "the sign is the other, in indices 24 to 31 of every 32"),
        ("dequantize/q6_k/r33-d512", _signs, "the sign is the other, in indices 24 to 31 of every 32"),
        (HEADS, _over_heads, "mean squares are taken over all heads, too"),
    ],
)
def test_a_part_a_term_and_a_partial_sum_are_named(case, wrong, cause):
    causes = named(case, wrong)
    assert causes and any(causes[0].startswith(one) for one in cause.split("|")), causes


def test_where_nothing_is_seen_foreign_numbers_are_no_unwritten_memory():
    causes = named("attention/f32/unseen-b2-l20-j77-h2-d40", of_no_key(lambda v: 0.3 * v[:, :1] + 0.2 * v[:, 1:2]))
    assert causes and causes[0].startswith("where all should be 0 stand numbers up to"), causes


# --- what a kernel does inside -----------------------------------------------------------------------------------


def _values(inputs, *names):
    return (inputs[name].values().astype(np.float64) for name in names)


def _product(then):
    def wrong(op, inputs, params):
        bare = answer(op, {**inputs, "bias": stored(0 * inputs["bias"].values())}, params)
        return then(bare, inputs["bias"].values())

    return wrong


def _normalised(mean, square):
    """mean, square: of a row x; square takes x and the mean."""

    def wrong(op, inputs, params):
        (x,) = _values(inputs, "x")
        centre = mean(x)
        y = (x - centre) / np.sqrt(square(x, centre) + params["eps"])
        y = y * inputs["weight"].values() if "weight" in inputs else y
        return y + inputs["bias"].values() if "bias" in inputs else y

    return wrong


def _attended(weights, free=False):
    """weights: scores [B, H, L, J] -> weights; free: of all scores, not of those of earlier keys alone"""

    def wrong(op, inputs, params):
        q, k, v = _values(inputs, *"qkv")
        s = np.einsum("blhd,bjhd->bhlj", q, k) * q.shape[-1] ** -0.5
        if params["causal"] and not free:
            s = np.where(np.arange(s.shape[-1]) > np.arange(s.shape[-2])[:, None], -np.inf, s)
        return np.einsum("bhlj,bjhe->blhe", weights(s), v)

    return wrong


def _softmax(s):
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def _sum_of_eights(s):
    """Numbers are by the last maximum, the sum's terms by that of their tile of 8 and those before."""
    total = 0.0
    for j in range(0, s.shape[-1], 8):
        total = total + np.exp(s[..., j : j + 8] - s[..., : j + 8].max(axis=-1, keepdims=True)).sum(
            -1, keepdims=True
        )
    return np.exp(s - s.max(axis=-1, keepdims=True)) / total


def _hidden(where):
    def weights(s):
        i, j = np.indices(s.shape[-2:])
        return _softmax(np.where(where(i, j), -np.inf, s))

    return weights


def _by_frequencies(exponent):
    def wrong(op, inputs, params):
        (t,) = _values(inputs, "t")
        half = params["dim"] // 2
        angle = params["scale"] * t[:, None] * params["max_period"] ** -exponent(np.arange(half), half)
        return np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)

    return wrong


def _on_from_the_last(y, bias):
    """Of four columns each goes on from the one before."""
    y = np.copy(y)
    for at in range(1, y.shape[-1]):
        y[..., at] += y[..., at - 1] if at % 4 else 0
    return y + bias


def _filters_by_modulo(op, inputs, params):
    w, b, groups = inputs["weight"].values(), inputs["bias"].values(), params["groups"]
    y = [
        answer(
            op,
            {"x": stored(x.copy()), "weight": stored(w[g::groups].copy()), "bias": stored(b[g::groups].copy())},
            {**params, "groups": 1},
        )
        for g, x in enumerate(np.split(inputs["x"].values(), groups, axis=1))
    ]
    return np.stack(y, axis=2).reshape(len(y[0]), -1, *y[0].shape[2:])


def _planes_apart(op, inputs, params):
    """Channels of x are sought a row too near."""
    x = inputs["x"].values()
    N, C, H, W = x.shape
    at = np.arange(N)[:, None, None] * C * H * W + np.arange(C)[:, None] * (H - 1) * W + np.arange(H * W)
    return answer(op, {**inputs, "x": stored(x.ravel()[at].reshape(x.shape))}, params)


def _circular_in_time(op, inputs, params):
    before, behind, *rest = params["padding"]
    x = np.pad(inputs["x"].values(), ((0, 0), (0, 0), (before, behind), (0, 0), (0, 0)), mode="wrap")
    return answer(op, {**inputs, "x": stored(x)}, {**params, "padding": (0, 0, *rest)})


def _as_it_was(op, inputs, params):
    """From number 768 on an activation in place does nothing."""
    y = answer(op, inputs, params)
    y.reshape(-1)[768:] = inputs["x"].values().ravel()[768:]
    return y


def _rounded(dtype, *names):
    def wrong(op, inputs, params):
        changed = {n: stored(inputs[n].values().astype(dtype).astype(np.float32)) for n in names}
        return answer(op, {**inputs, **changed}, params)

    return wrong


def _cut_off(op, inputs, params):
    bits = inputs["weight"].values().view(np.uint32) >> 13 << 13
    return answer(op, {**inputs, "weight": stored(bits.view(np.float32))}, params)


def _mean(x):
    return x.mean(axis=-1, keepdims=True)


LINEAR, ROPE = "linear/f32/awkward-x2x33x77-o20", "rope/f32/neighbours-n2-l33-h3-d20"
CAUSAL, GATED = "attention/f32/causal-b1-l77-j77-h2-d64", "gated_add/f32/wide-n3-l5-d132"


def _where(chosen, there):
    """An activation of which part of the range is something else."""

    def wrong(op, inputs, params):
        x = inputs["x"].values()
        return np.where(chosen(x), there(x), answer(op, inputs, params))

    return wrong


def _clamped_behind(op, inputs, params):
    """The border repeats on the right; all else is zeros."""
    top, bottom, left, right = params["padding"]
    x = np.pad(inputs["x"].values(), ((0, 0), (0, 0), (0, 0), (0, right)), "edge")
    return answer(op, {**inputs, "x": stored(x)}, {**params, "padding": (top, bottom, left, 0)})


def _through(change):
    return lambda op, inputs, params: answer(
        op, {**inputs, "x": stored(change(inputs["x"].values()).astype(np.float32))}, params
    )


def _sums_of_pairs(op, inputs, params):
    """Two rows add up their squares in one place."""
    x = inputs["x"].values().astype(np.float64)
    sums = (x**2).sum(axis=-1).ravel()
    both = sums + sums.reshape(-1, 2)[:, ::-1].ravel()
    return x / np.sqrt(both.reshape(*x.shape[:-1], 1) / x.shape[-1] + params["eps"])


def _sum_so_far(s):
    """Each tile of 16 scores is divided by the sum up to its own last one."""
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.cumsum(axis=-1)[..., np.minimum(np.arange(s.shape[-1]) // 16 * 16 + 15, s.shape[-1] - 1)]


def _keys_behind(op, inputs, params):
    """Keys are read on to 64, of every item and every group, into those of the next item."""
    more = {name: stored(widened(inputs[name].values(), 31, 1)) for name in "kv"}
    return answer(op, {**inputs, **more}, params)


def _times_in_float16(op, inputs, params):
    """Times are a float16 share of 1000, as the scheduler's own type is."""
    (t,) = _values(inputs, "t")
    coarse = 1000 * (params["scale"] * t / 1000).astype(np.float16).astype(np.float64)
    return answer(op, {**inputs, "t": stored((coarse / params["scale"]).astype(np.float32))}, params)


INSIDE = {
    # ranges, borders, activations, tiles
    "zero far below": ("gelu/f32/wide-x2x320", _where(lambda x: x < -3, lambda x: 0 * x), "^it is 0 where x < -3$"),
    "one far above": (
        "tanh/f32/bend-x33x77",
        _where(lambda x: x > 1.5, lambda x: 1.0),
        r"^it is 1 where x > 1\.5$",
    ),
    "a quarter on both sides": (
        "tanh/f32/bend-x33x77",
        _where(lambda x: abs(x) > 2, lambda x: 0.25),
        r"^it is 0\.25 where \|x\| > 2$",
    ),
    "the mean of the first threads": (
        "layer_norm/f32/large-x3x2080",
        _normalised(lambda x: x[..., :1024].sum(axis=-1, keepdims=True) / 2080, lambda x, m: _mean((x - m) ** 2)),
        "^the mean alone is that of the first 1024 of 2080",
    ),
    "a limited sigmoid": (
        "silu/f32/far-x20x77",
        lambda op, inputs, params: (x := inputs["x"].values()) / (1 + np.exp(-np.clip(x, -8, 8))),
        r"^it is x times its gate at 8 where \|x\| > 8$",
    ),
    "a limited argument": (
        "sigmoid/f32/wide-x2x320",
        lambda op, inputs, params: 1 / (1 + np.exp(-np.clip(inputs["x"].values(), -6, 6))),
        r"^it is its value at 6 where \|x\| > 6$",
    ),
    "a border repeated on one side": (
        "conv2d/f32/3x3-n2-c33-k20-h9-w14",
        _clamped_behind,
        "repeats the outermost pixels.*, behind axis 3 alone",
    ),
    "activations in bfloat16 beside blocks": (
        "linear/q8_0/odd-x7x160-o33",
        _through(lambda x: x.astype(ml_dtypes.bfloat16)),
        "activations rounded to bf16",
    ),
    "rows that share a sum": ("rms_norm/f32/bare-x2x10x132", _sums_of_pairs, "sums over 2 rows that share a place"),
    # statistics of norms
    # precisions
    "weights cut off": (LINEAR, _cut_off, "weight cut off to tf32"),
    "two operands in eight bits": (
        "conv2d/f32/latent-n2-c4-k40-h12-w9",
        _rounded(ml_dtypes.float8_e4m3fn, "x", "weight"),
        "x and weight rounded to float8_e4m3",
    ),
    "scores in bfloat16": (
        SELF,
        _attended(lambda s: _softmax(s.astype(ml_dtypes.bfloat16).astype(float))),
        "scores rounded to bfloat16",
    ),
    # attention
    "a sum of tiles": (SELF, _attended(_sum_of_eights), "tiles of 8 scores.* to the sum"),
    "sums so far": (SELF, _attended(_sum_so_far), "tiles of 16 scores are divided by the sum up to their own"),
    "keys of the next item": (
        "attention/f32/grouped-b2-l20-j33-h6-d32-g2",
        _keys_behind,
        "axis J of k and v is read on to 64 numbers",
    ),
    "a window": (CAUSAL, _attended(_hidden(lambda i, j: i - j >= 9)), "keys 9 and more from the query"),
    "tiles of keys": (
        CAUSAL,
        _attended(_hidden(lambda i, j: j // 32 > i // 32), True),
        "hidden by whole tiles of 32",
    ),
    # entries, tiles and strides
    "another item's gate": (
        GATED,
        lambda op, inputs, params: answer(
            op, {**inputs, "gate": stored(np.roll(inputs["gate"].values(), -1, 0))}, params
        ),
        "gate.*(next, in a circle|first 1/3 last)",
    ),
    "the last tile again": (
        "linear/f32/tokens-x77x320-o33",
        of_slices("weight", 1, [*range(304), *range(288, 304)]),
        "the last tile of 16 is the one before",
    ),
    "sums that are not cleared": (LINEAR, _product(_on_from_the_last), "not cleared: each of 4 along axis 2"),
    "groups by modulo": (
        "conv2d/f32/multiplied-n1-c6-k12-h8-w7",
        _filters_by_modulo,
        "dealt to the groups in turn",
    ),
    "channels a row too near": (CONV, _planes_apart, "axis 1 is sought at a stride of 112 numbers, not 126"),
    "frames in a circle": ("conv3d/f32/3x3x3-n2-c6-k8-d5-h7-w9", _circular_in_time, r"circular.*along axes \[2\]"),
    "an end that is not computed": ("silu/f32/bend-x33x77", _as_it_was, "left out.* elements from 768 on"),
    "a result cut off": (
        LINEAR,
        lambda op, inputs, params: answer(op, inputs, params).clip(
            inputs["x"].values().min(), inputs["x"].values().max()
        ),
        "cut off at the smallest and largest number of x",
    ),
    "heads read on": (
        CAPPED,
        lambda op, inputs, params: answer(
            op,
            {**inputs, **{n: stored(widened(inputs[n].values(), -inputs[n].shape[-1] % 128)) for n in "qk"}},
            {**params, "scale": params["scale"] or inputs["q"].shape[-1] ** -0.5},
        ),
        r"axis D of q and k is read on to \d+ numbers, into what lies behind it",
    ),
    "a causal mask of pairs": (
        "attention/f32/causal-b1-l77-j77-h2-d64",
        lambda op, inputs, params: answer(
            op,
            {**inputs, "mask": stored(np.where(PAIR[:, None] < PAIR, -np.inf, 0).astype(np.float32)[None, None])},
            {**params, "causal": False},
        ),
        "keys are hidden by whole tiles of 2",
    ),
    "a sink that weighs too much": (
        "attention/f32/sinks-unseen-b1-l20-j33-h4-d32-g2",
        lambda op, inputs, params: answer(
            op,
            {**inputs, "sinks": stored(inputs["sinks"].values().astype(np.float32) + np.float32(np.log(4)))},
            params,
        ),
        r"each sink weighs (4\b|3\.999|4\.000)",
    ),
    # frequencies
    "frequencies of times": (
        TIME,
        _by_frequencies(lambda i, n: (i + 0.5) / n),
        r"max_period\^-\(\(2 i \+ 1\) / d\)",
    ),
    "times in float16": (
        "timestep_embedding/f32/fractional-d64",
        _times_in_float16,
        "times, divided by 1000, are rounded to float16",
    ),
    "positions a half too small": (
        ROPE,
        lambda op, inputs, params: _turned(inputs["ids"].values() - 0.5, inputs, params),
        "positions are a half less",
    ),
}


def _turned(ids, inputs, params):
    """Turn neighbouring channels by ids that are no integers."""
    (x,) = _values(inputs, "x")
    n = x.shape[-1]
    angle = (ids * params["theta"] ** -(np.arange(0, n, 2) / n))[:, :, None]
    one, two = x[..., ::2], x[..., 1::2]
    y = one * np.cos(angle) - two * np.sin(angle), one * np.sin(angle) + two * np.cos(angle)
    return np.stack(y, axis=-1).reshape(x.shape)


@pytest.mark.parametrize("what", INSIDE)
def test_what_a_kernel_does_inside_is_named(what):
    case, wrong, cause = INSIDE[what]
    causes = named(case, wrong)
    assert causes and re.search(cause, causes[0]), causes


def test_rows_that_each_have_a_factor_are_no_blocks():
    factors = np.random.default_rng(4).uniform(0.5, 2, (2, 20, 2, 1)) * (np.arange(20) % 2)[:, None, None]
    causes = named(SELF.replace("self", "cross").replace("l35-j35", "l20-j77"), _times_rows(factors))
    assert not any("each block" in cause for cause in causes), causes


def _times_rows(factors):
    return lambda op, inputs, params: answer(op, inputs, params) * np.where(factors, factors, 1)


def test_a_bit_that_is_wrong_here_and_there_is_not_called_inverted():
    def wrong(op, inputs, params):
        x = inputs["x"]
        data = x.data.copy()
        data.reshape(-1, 22)[:, 2:6] ^= np.random.default_rng(6).integers(0, 256, (x.data.size // 22, 4), np.uint8)
        return answer(op, {**inputs, "x": StoredTensor(x.type, x.shape, data)}, params)

    assert not any("inverted" in cause for cause in named("dequantize/q5_0/r33-d512", wrong))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_probabilities_rounded_before_the_values(kind):
    def wrong(op, inputs, params):
        q, k, v = (inputs[name].values().astype(np.float64) for name in "qkv")
        s = np.einsum("blhd,bjhd->bhlj", q, k) / q.shape[-1] ** 0.5
        e = np.exp(s - s.max(axis=-1, keepdims=True))
        weights = (e / e.sum(axis=-1, keepdims=True)).astype(np.float32).astype(kind)
        return np.einsum("bhlj,bjhd->blhd", weights.astype(np.float64), v)

    assert named("attention/f32/self-b2-l35-j35-h2-d40", wrong)[0] == f"probabilities rounded to {kind}"
