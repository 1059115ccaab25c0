"""What a wrong answer to an operation is called."""

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.golden.block_activations import OTHERWISE
from refsd.golden.case import Case
from refsd.golden.judge import Standard
from refsd.golden.metrics import measure
from refsd.golden.operations import OPERATIONS, complete, run
from refsd.golden.recipe import Recipe
from refsd.golden.verdict import judge
from refsd.judges.operation import OperationJudge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import Deviation
from refsd.numerics.profiles import FLOAT32, FLOAT64, GGML_CPU, TORCH_F16
from refsd.numerics.tensor import stored

_PLACES = [
    ("group_norm/f32/tiny-n2-c64-h6-w5-g32", FLOAT32),
    ("layer_norm/f32/tiny-x33x320", FLOAT32),
    ("gelu/f32/bend-x33x77", FLOAT32),
    ("linear/q8_0/tokens-x77x320-o33", FLOAT32),
    ("linear/q8_0/tokens-x77x320-o33", GGML_CPU),
    ("linear/q8_0/tokens-x77x320-o33", TORCH_F16),
    ("layer_norm/f32/tiny-x33x320", TORCH_F16),
    ("swiglu/f32/x2x33x154", TORCH_F16),
]


def _named(case, inputs, found, truth, honest, numerics):
    return OperationJudge().explain(Standard(case, inputs, truth, honest, numerics), found).causes


def _answers(case, inputs, numerics):
    params = complete(case.op, inputs, case.params)
    return (
        params,
        run(case.op, Arithmetic(FLOAT64), inputs, params),
        run(case.op, Arithmetic(numerics), inputs, params),
    )


def _conforms(case, inputs, params, found, truth, honest, numerics):
    op = OPERATIONS[case.op]
    limits = op.bound_of(numerics, inputs, params, truth["y"])
    return judge([measure("y", found["y"], truth["y"], honest["y"], limits, op.channel)]).passed


def _same(case, inputs, params, *names):
    """Whether known bugs give the same numbers here."""
    op = OPERATIONS[case.op]
    mutants = {mutant.name: mutant for mutant in op.mutants}
    one, other = (mutants[name].change(op, inputs, params) for name in names)
    return np.allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize(("name", "numerics"), _PLACES)
def test_each_known_bug_is_named(name, numerics):
    case = CASES[name]
    inputs = case.realize()
    params, truth, honest = _answers(case, inputs, numerics)
    asked = 0
    for mutant in OPERATIONS[case.op].mutants:
        with np.errstate(all="ignore"):
            wrong = mutant.change(OPERATIONS[case.op], inputs, params)
        if wrong is None or np.array_equal(wrong, honest["y"]):
            continue
        # Another order of sums moves the last bits; these come on top of what honest codes are off.
        with np.errstate(over="ignore"):
            own = honest["y"] - truth["y"] if mutant.name in OTHERWISE else 0
            found = {"y": (wrong * (1 + 2.0**-23) + own).astype(numerics.storage_dtype)}
        if not np.isfinite(found["y"]).all():
            continue
        # A bug that its rounding hides may go unnamed.
        if _conforms(case, inputs, params, {"y": wrong}, truth, honest, numerics):
            continue
        named = _named(case, inputs, found, truth, honest, numerics)
        # Where two bugs are the same here, or about so, either may come first.
        alike = mutant.name.startswith("eps") or _same(case, inputs, params, mutant.name, named[0])
        assert named[0] == mutant.name or (mutant.name in named and alike)
        asked += 1
    assert asked >= 2


@pytest.mark.jitted
@pytest.mark.parametrize(
    ("op", "name", "axes", "called"),
    [
        ("linear", "weight", (0, 1), "weight read as its transpose"),
        ("lora", "up", (0, 1), "up read as its transpose"),
        ("lora", "down", (0, 1), "down read as its transpose"),
        ("lokr", "w1", (0, 1), "W1 read as its transpose"),
        ("conv2d", "weight", (0, 1), "filters and channels of the weight exchanged"),
        ("conv3d", "weight", (0, 1), "filters and channels of the weight exchanged"),
        ("attention", "q", (1, 2), "tokens and heads of q exchanged"),
    ],
)
def test_axes_that_are_exchanged_only_where_the_shape_allows_it_are_named(op, name, axes, called):
    """An engine that tells a layout by its shape errs where both fit: some case must show it."""
    one, other = axes
    square = [
        c
        for c in CASES.values()
        if c.op == op and name in c.inputs and c.inputs[name].shape[one] == c.inputs[name].shape[other] > 1
    ]
    assert square
    case = min(square, key=lambda case: case.inputs["x" if "x" in case.inputs else "q"].shape)
    inputs = case.realize()
    params, truth, honest = _answers(case, inputs, FLOAT32)
    exchanged = np.ascontiguousarray(inputs[name].values().swapaxes(one, other))
    found = {"y": run(op, Arithmetic(FLOAT32), {**inputs, name: stored(exchanged)}, params)["y"]}
    assert called in _named(case, inputs, found, truth, honest, FLOAT32)


@pytest.mark.jitted
@pytest.mark.parametrize(
    ("name", "changed", "called"),
    [
        ("conv3d/f32/uneven-stride-n1-c5-k5-d3-h6-w7", {"stride": (1, 1, 2)}, "stride's two numbers exchanged"),
        (
            "conv2d/f32/uneven-padding-n1-c7-k5-h9-w11",
            {"padding": (1, 1, 2, 2)},
            "padding of rows and columns swapped",
        ),
        ("max_pool2d/f32/plain-n2-c7-h9-w12", {"stride": (3, 2)}, "stride turned"),
        ("conv2d/f32/down-n2-c20-k33-h11-w8", {"stride": 1}, "stride is 1, not 2"),
    ],
)
def test_parameters_that_give_another_shape_are_named(name, changed, called):
    case = CASES[name]
    inputs = case.realize()
    params, truth, honest = _answers(case, inputs, FLOAT32)
    y = run(case.op, Arithmetic(FLOAT32), inputs, {**params, **changed})["y"]
    assert y.shape != truth["y"].shape
    assert _named(case, inputs, {"y": y * (1 + 2.0**-23)}, truth, honest, FLOAT32) == [called]
    other = OperationJudge().explain(Standard(case, inputs, truth, honest, FLOAT32), {"y": 2 * y})
    assert (other.causes, other.looks) == ([], [f"its shape fits: {called}"])


@pytest.mark.parametrize(
    ("name", "shape", "called"),
    [
        ("linear/f32/row-x1x77-o20", (20, 1), "the right numbers in another shape, its axes in reverse"),
        ("linear/f32/row-x1x77-o20", (20,), "the right numbers in another shape"),
        ("patchify/f32/grey-n2-c1-h6-w8", (4, 12, 2), "the right numbers in another shape, its axes in reverse"),
    ],
)
def test_right_numbers_in_another_shape_are_named(name, shape, called):
    """As an engine answers that writes ggml's order of sizes, innermost first."""
    case = CASES[name]
    inputs = case.realize()
    _, truth, honest = _answers(case, inputs, FLOAT32)
    found = honest["y"].reshape(shape)
    assert _named(case, inputs, {"y": found}, truth, honest, FLOAT32) == [called]
    assert _named(case, inputs, {"y": found[::-1]}, truth, honest, FLOAT32) != [called]


@pytest.mark.jitted
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "group_norm", "adaptive_layer_norm"])
def test_eps_in_the_sum_is_named_in_every_case_that_fails(op):
    """Where D is large it is as good as no eps: one cause for all cases is still among those told."""
    told = []
    for case in (case for case in CASES.values() if case.op == op and "/f32/" in case.name):
        inputs = case.realize()
        params, truth, honest = _answers(case, inputs, FLOAT32)
        shape = inputs["x"].shape
        n = np.prod(shape[1:]) // params["num_groups"] if op == "group_norm" else shape[-1]
        found = {"y": run(op, Arithmetic(FLOAT32), inputs, {**params, "eps": params["eps"] / n})["y"]}
        if not _conforms(case, inputs, params, found, truth, honest, FLOAT32):
            told.append(
                [
                    name.startswith("eps is divided by")
                    for name in _named(case, inputs, found, truth, honest, FLOAT32)
                ]
            )
    assert told and all(any(names) for names in told)


@pytest.mark.parametrize("op", ["conv3d", "conv2d"])
def test_a_hypothesis_that_has_no_answer_does_not_hide_the_cause(op):
    """With the padding transposed, or a stride along the width, this picture has no output at all."""
    taps, sides = ((1, 2, 2), (0, 0)) if op == "conv3d" else ((2, 2), ())
    shape = (1, 4, *([3] if op == "conv3d" else []), 9, 1)
    tensors = {"x": Recipe(shape), "weight": Recipe((5, 4, *taps)), "bias": Recipe((5,))}
    stride = (1, 1, 2) if op == "conv3d" else (1, 2)
    case = Case("narrow", op, tensors, {"stride": stride, "padding": (*sides, 0, 0, 0, 1)})
    inputs = case.realize()
    params, truth, honest = _answers(case, inputs, FLOAT32)
    found = {"y": run(op, Arithmetic(FLOAT32), {k: t for k, t in inputs.items() if k != "bias"}, params)["y"]}
    assert _named(case, inputs, found, truth, honest, FLOAT32)[0] == "bias missing"


@pytest.mark.parametrize(
    ("name", "gaps"),
    [
        ("attention/f32/causal-b1-l77-j77-h2-d64", "exp(-inf) is NaN, and with it all that sees a hidden key"),
        ("attention/f32/unseen-b2-l20-j77-h2-d40", "NaN where nothing is seen"),
    ],
)
def test_what_is_nan_is_possibly_a_bugs_though_the_rest_is_wrong_otherwise(name, gaps):
    case = CASES[name]
    inputs = case.realize()
    params, truth, honest = _answers(case, inputs, FLOAT32)
    op = OPERATIONS[case.op]
    (bug,) = (mutant for mutant in op.mutants if mutant.name == gaps)
    y = bug.change(op, inputs, params)
    assert np.isfinite(y).any() and np.isnan(y).any()
    y = y * np.random.default_rng(3).uniform(0.9, 1.1, y.shape)
    explanation = OperationJudge().explain(Standard(case, inputs, truth, honest, FLOAT32), {"y": y})
    assert (explanation.causes, gaps in explanation.possible) == ([], True)


@pytest.mark.parametrize(("name", "numerics"), _PLACES)
def test_what_nobody_knows_has_no_name(name, numerics):
    case = CASES[name]
    inputs = case.realize()
    _, truth, honest = _answers(case, inputs, numerics)
    for found in (
        {"y": honest["y"] + np.random.default_rng(7).standard_normal(honest["y"].shape)},
        {"y": np.full_like(honest["y"], np.nan)},
        {},
    ):
        assert _named(case, inputs, found, truth, honest, numerics) == []
    cut = _named(case, inputs, {"y": honest["y"][..., :-1]}, truth, honest, numerics)
    assert all("alone are there" in cause for cause in cut)


def test_a_deviation_that_sets_a_parameter_moves_the_bound():
    """Of the operation that it is of, by a parameter that the operation has."""
    case = CASES["group_norm/f32/tiny-n2-c64-h6-w5-g32"]
    inputs = case.realize()
    params, truth, honest = _answers(case, inputs, FLOAT32)
    op = OPERATIONS[case.op]

    def limit(*deviations):
        standard = Standard(case, inputs, truth, honest, FLOAT32, deviations=deviations)
        return OperationJudge().measure(standard, honest)[0].limit

    def expected(params):
        bound = op.bound_of(FLOAT32, inputs, params, truth["y"])
        return measure("y", honest["y"], truth["y"], honest["y"], bound, op.channel).limit

    other = Deviation("mine/eps", "group_norm", {"eps": 1e-2}, "another eps", "nowhere")
    assert limit() == expected(params)
    assert limit(other) == expected(params | {"eps": 1e-2}) != limit()
    assert limit(other._replace(op="layer_norm")) == limit(other._replace(sets={"colour": 1})) == limit()


def test_two_kinds_of_gelu_are_told_apart():
    case = CASES["gelu/f32/bend-x33x77"]
    inputs = case.realize()
    _, truth, honest = _answers(case, inputs, FLOAT32)
    tanh = run("gelu_tanh", Arithmetic(FLOAT32), inputs, {})
    assert _named(case, inputs, tanh, truth, honest, FLOAT32) == ["tanh for erf"]


def _summed_in_float16(inputs):
    """A linear layer whose accumulators are float16, as are its weights and activations."""
    x, w = (inputs[name].values().astype(np.float16).astype(np.float32) for name in ("x", "weight"))
    y = np.zeros((*x.shape[:-1], w.shape[0]), np.float16)
    for k in range(x.shape[-1]):
        y = (y + x[..., k, None] * w[:, k]).astype(np.float16)
    return (y + inputs["bias"].values()).astype(np.float16) if "bias" in inputs else y


@pytest.mark.parametrize("name", ["linear/f32/tokens-x77x320-o33", "linear/f32/wide-x7x132-o33"])
def test_float16_accumulators_are_no_float16_activations_where_those_are_declared(name):
    """The first was called "activations silently float16", the second "bias missing"."""
    case = CASES[name]
    inputs = case.realize()
    params, truth, honest = _answers(case, inputs, TORCH_F16)
    found = {"y": _summed_in_float16(inputs)}
    assert not _conforms(case, inputs, params, found, truth, honest, TORCH_F16)
    named = _named(case, inputs, found, truth, honest, TORCH_F16)
    assert all(name.startswith("products added up in float16") for name in named)


@pytest.mark.parametrize("numerics", [FLOAT32, TORCH_F16], ids=lambda n: n.name)
@pytest.mark.parametrize("name", ["linear/f32/tokens-x77x320-o33", "conv2d/f32/latent-n2-c4-k40-h12-w9"])
def test_too_much_noise_has_no_name(name, numerics):
    case = CASES[name]
    inputs = case.realize()
    params, truth, honest = _answers(case, inputs, numerics)
    noise = (honest["y"] - truth["y"]) * np.sign(np.random.default_rng(5).standard_normal(truth["y"].shape))
    for times in (6, 20, 100):
        found = {"y": truth["y"] + times * noise}
        assert _named(case, inputs, found, truth, honest, numerics) == []
    assert not _conforms(case, inputs, params, found, truth, honest, numerics)


def test_a_precision_that_is_declared_is_no_cause_of_another_fault():
    """An engine that rounds its activations to float16, says so, and forgets the bias."""
    case = CASES["linear/f32/tokens-x77x320-o33"]
    inputs = case.realize()
    bias = next(mutant for mutant in OPERATIONS["linear"].mutants if mutant.name == "bias missing")
    params, truth, honest = _answers(case, inputs, TORCH_F16)
    found = {"y": bias.change(OPERATIONS["linear"], inputs, params).astype(np.float16)}
    assert _named(case, inputs, found, truth, honest, TORCH_F16) == ["bias missing"]
    for numerics, named in ((FLOAT32, ["activations silently float16"]), (TORCH_F16, [])):
        _, truth, honest = _answers(case, inputs, numerics)
        x = inputs["x"]._replace(data=inputs["x"].data.astype(np.float16).astype(np.float32))
        found = run("linear", Arithmetic(FLOAT32), {**inputs, "x": x}, params)
        found["y"][0, 0] *= 1 if numerics is FLOAT32 else 2  # else it conforms
        assert _named(case, inputs, found, truth, honest, numerics) == named


def _serial(x):
    return np.add.accumulate(x, axis=-1)[..., -1:]


def _backwards(x):
    return _serial(x[..., ::-1])


def _in_lanes(x):
    return _serial(np.stack([_serial(x[..., lane::8])[..., 0] for lane in range(8)], axis=-1))


@pytest.mark.parametrize("total", [_serial, _backwards, _in_lanes])
@pytest.mark.parametrize("name", ["layer_norm/f32/mean-x20x132", "group_norm/f32/mean-n2-c64-h6-w5-g32"])
def test_a_variance_in_one_pass_is_named_in_any_order_of_sums(name, total):
    case = CASES[name]
    inputs = case.realize()
    params, truth, honest = _answers(case, inputs, FLOAT32)
    x = inputs["x"].values()
    rows = x.reshape(len(x), params.get("num_groups", 1), -1)
    n = np.float32(rows.shape[-1])
    variance = np.maximum(total(rows * rows) / n - np.square(total(rows) / n), 0)
    y = ((rows - total(rows) / n) / np.sqrt(variance + np.float32(params["eps"]))).reshape(x.shape)
    along = (-1, *[1] * (x.ndim - 2)) if case.op == "group_norm" else (-1,)
    y = y * inputs["weight"].values().reshape(along) + inputs["bias"].values().reshape(along)
    causes = _named(case, inputs, {"y": y}, truth, honest, FLOAT32)
    assert causes == ["variance as E[x^2] - E[x]^2 in float32"]


def test_a_variance_that_is_off_by_more_than_one_pass_loses_has_another_cause():
    case = CASES["layer_norm/f32/mean-x20x132"]
    inputs = case.realize()
    params, truth, honest = _answers(case, inputs, FLOAT32)
    x = inputs["x"].values()
    n = x.shape[-1]
    y = (x - x.mean(axis=-1, keepdims=True)) / np.sqrt(x.var(axis=-1, keepdims=True) * n / (n - 20) + params["eps"])
    y = y * inputs["weight"].values() + inputs["bias"].values()
    assert "variance as E[x^2] - E[x]^2 in float32" not in _named(case, inputs, {"y": y}, truth, honest, FLOAT32)


def _rotary(inputs, params):
    ids = inputs["ids"].values()[..., [0, 2, 1]]
    return run("rope", Arithmetic(FLOAT32), {**inputs, "ids": stored(ids)}, params)["y"]


def _affine(at):
    def affine(inputs, params):
        C, G = inputs["x"].shape[1], params["num_groups"]
        plain = {"weight": stored(np.ones(C, np.float32)), "bias": stored(np.zeros(C, np.float32))}
        y = run("group_norm", Arithmetic(FLOAT32), {**inputs, **plain}, params)["y"]
        weight, bias = (inputs[name].values()[at(np.arange(C), C // G)] for name in ("weight", "bias"))
        return y * weight[:, None, None] + bias[:, None, None]

    return affine


def _sum_of_whole_blocks(inputs, params):
    x = inputs["x"].values()
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e[..., : x.shape[-1] // 8 * 8].sum(axis=-1, keepdims=True)


def _keys_of_whole_blocks(inputs, params):
    q, k, v = (inputs[name].values().transpose(0, 2, 1, 3) for name in ("q", "k", "v"))
    s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    p = e / e[..., : s.shape[-1] // 8 * 8].sum(axis=-1, keepdims=True)
    return (p @ v).transpose(0, 2, 1, 3)


@pytest.mark.parametrize(
    ("name", "wrong", "cause"),
    [
        ("softmax/f32/plain-x33x77", _sum_of_whole_blocks, "the sum without its tail after whole blocks of 8"),
        (
            "attention/f32/cross-b2-l20-j77-h2-d40",
            _keys_of_whole_blocks,
            "the softmax's sum without its tail after whole blocks of 8",
        ),
        (
            "group_norm/f32/plain-n2-c64-h9-w7-g32",
            _affine(lambda c, size: c % size),
            "weight and bias indexed within the group",
        ),
        (
            "group_norm/f32/plain-n2-c64-h9-w7-g32",
            _affine(lambda c, size: c // size),
            "weight and bias indexed by the group",
        ),
        ("rope/f32/flux-n2-l20-h3-d128", _rotary, "rows and columns of positions exchanged"),
    ],
)
def test_a_bug_that_engines_have_had_is_named(name, wrong, cause):
    case = CASES[name]
    inputs = case.realize()
    params, truth, honest = _answers(case, inputs, FLOAT32)
    found = {"y": wrong(inputs, params).astype(np.float32)}
    assert _named(case, inputs, found, truth, honest, FLOAT32)[0] == cause
