"""Every adapter's definition against its paper, and its forward against the merged weight."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive.adapters import deltas as naive
from naive.conv2d import conv2d as naive_conv2d

from refsd.kernels.adapters import (
    IA3,
    Conv2d,
    DoRA,
    Full,
    GLoRA,
    InputRotation,
    Linear,
    LoHa,
    LoKr,
    LoRA,
    OutputRotation,
)
from refsd.kernels.adapters.boft import butterfly, butterfly_inputs
from refsd.kernels.adapters.layer import dilated
from refsd.kernels.adapters.oft import diagonal
from refsd.kernels.adapters.rotation import (
    cayley,
    cayley_inverse,
    cayley_neumann,
    clamped,
    limited,
    limited_each,
    skew,
    skew_from_upper,
)
from refsd.kernels.adapters.strengths import dora_peft, dora_whole, turn_comfyui, turn_whole

KERNELS = {"linear": (), "pointwise": (1, 1), "conv": (3, 2)}
O, I = 8, 12


def draws(seed):
    rng = np.random.default_rng(seed)
    return lambda *shape: rng.standard_normal(shape)


def pair(n, kernel):
    """Every kind: name -> (adapter, its delta by the naive version, given the weight)."""
    taps = int(np.prod(kernel))
    K, weight = 3, n(O, I, *kernel)
    down, up = n(K, I, *kernel), n(O, K)
    hada = n(O, K), n(K, I * taps), n(O, K), n(K, I * taps)
    w1, w2 = n(2, 3), n(4, 4, *kernel)
    w1_a, w1_b, w2_a, w2_b = n(2, K), n(K, 3), n(4, K), n(K, 4 * taps)
    joined = (w2_a @ w2_b).reshape(4, 4, *kernel)
    gain, gain_in = n(O), n(I)
    stages, blocks = n(2, 4, 4), n(3, 4, 2, 2)
    in_stages, in_blocks = n(I * taps // 4, 4, 4), n(2, I * taps // 2, 2, 2)
    flat = weight.reshape(O, -1)

    def turned(matrix, factor=gain):
        return (factor[:, None] * (matrix @ flat)).reshape(weight.shape) - weight

    def turned_in(matrix, factor=gain):
        return (factor[:, None] * (flat @ matrix.T)).reshape(weight.shape) - weight

    found = {
        "lora": (LoRA(down, up, None, 0.7), naive.lora(down, up, None, 0.7)),
        "loha": (LoHa(*hada, None, None, 0.6), naive.loha(*hada, None, None, weight.shape, 0.6)),
        "lokr": (LoKr(w1, w2, 0.3), naive.lokr(w1, w2, 0.3)),
        "lokr-w1": (LoKr((w1_a, w1_b), w2, 0.3), naive.lokr(w1_a @ w1_b, w2, 0.3)),
        "lokr-w2": (LoKr(w1, (w2_a, w2_b), 0.3), naive.lokr(w1, joined, 0.3)),
        "lokr-both": (LoKr((w1_a, w1_b), (w2_a, w2_b), 0.3), naive.lokr(w1_a @ w1_b, joined, 0.3)),
        "glora": (
            GLoRA(up_in := n(I, K), n2 := n(K, I), up, down, 0.4),
            naive.glora(weight, up_in, n2, up, down, 0.4),
        ),
        "ia3": (IA3(gain), naive.ia3(weight, gain, False)),
        "ia3-input": (IA3(gain_in, True), naive.ia3(weight, gain_in, True)),
        "full": (Full(weight[::-1].copy()), weight[::-1]),
        "oft": (OutputRotation(diagonal(skew(stages)), gain), turned(naive.oft(stages))),
        "boft": (OutputRotation(butterfly(skew(blocks)), gain), turned(naive.boft(blocks))),
        "oft-input": (
            InputRotation(diagonal(skew(in_stages)), gain),
            turned_in(naive.block_diagonal([naive.rotation(b - b.T) for b in in_stages])),
        ),
        "boft-input": (InputRotation(butterfly_inputs(in_blocks), gain), turned_in(naive.boft_inputs(in_blocks))),
    }
    if kernel:
        mid, t1, t2 = n(K, K, *kernel), n(K, K, *kernel), n(K, K, *kernel)
        flat_down = n(K, I)
        a, b, c, d = n(K, O), n(K, I), n(K, O), n(K, I)
        found["lora-mid"] = (LoRA(flat_down, up, mid, 0.7), naive.lora(flat_down, up, mid, 0.7))
        found["loha-mid"] = (LoHa(a, b, c, d, t1, t2, 0.6), naive.loha(a, b, c, d, t1, t2, weight.shape, 0.6))
        parts = (n(K, 4), n(K, 4), mid)
        core = np.einsum("klrs,ko,li->oirs", mid, parts[0], parts[1])
        found["lokr-mid"] = (LoKr(w1, parts, 0.3), naive.lokr(w1, core, 0.3))
    for name in ("lora", "loha", "lokr", "lokr-both", *(("lora-mid",) if kernel else ())):
        inner, delta = found[name]
        found[f"dora-{name}"] = (DoRA(inner, abs(gain)), naive.dora(weight, delta, abs(gain), False))
        found[f"dora-{name}-input"] = (
            DoRA(inner, abs(gain_in), True),
            naive.dora(weight, delta, abs(gain_in), True),
        )
    return weight, found


KINDS = [(shape, name) for shape, kernel in KERNELS.items() for name in pair(draws(0), kernel)[1]]


def distance(got, want):
    return np.linalg.norm(got - want) / np.linalg.norm(want)


@pytest.mark.parametrize(("shape", "name"), KINDS)
def test_delta(shape, name):
    weight, found = pair(draws(1), KERNELS[shape])
    adapter, expected = found[name]
    assert adapter.delta(weight).shape == weight.shape
    assert distance(adapter.delta(weight), expected) < 1e-13


@pytest.mark.parametrize(("shape", "name"), KINDS)
@pytest.mark.parametrize("strength", [1.0, -0.4])
def test_forward_is_the_merged_weight(shape, name, strength):
    n = draws(2)
    weight, found = pair(n, KERNELS[shape])
    adapter, _ = found[name]
    bias = n(O)
    merged = weight + adapter.delta(weight, strength)
    if weight.ndim == 2:
        x, layer = n(2, 5, I), Linear(weight, bias)
        expected = x @ merged.T + bias
    else:
        x, layer = n(2, I, 7, 6), Conv2d(weight, bias, 2, (1, 0, 2, 1), 2)
        expected = naive_conv2d(x, dilated(merged, 2), bias, 2, (1, 0, 2, 1))
    base = layer.apply(x, weight) + layer.channels(bias)
    out = base.copy()
    adapter.forward(x, base, layer, out, strength)
    assert distance(out, expected) < 1e-13
    adapter.forward(x, base, layer, base, strength)
    assert np.array_equal(out, base), "out may be base"


@pytest.mark.parametrize(("shape", "name"), KINDS)
def test_strength_zero(shape, name):
    """Nothing but what a rule leaves: LyCORIS a DoRA's difference and an OFT's gain, PEFT a DoRA's magnitudes."""
    weight, found = pair(draws(3), KERNELS[shape])
    adapter, left = found[name][0], np.zeros_like(weight)
    if isinstance(adapter, DoRA):
        left = adapter.inner.delta(weight)
        assert np.abs(adapter._replace(shares=dora_whole).delta(weight, 0.0)).max() < 1e-12
        bare = adapter._replace(inner=adapter.inner._replace(scale=0.0)).delta(weight)
        np.testing.assert_allclose(adapter._replace(shares=dora_peft).delta(weight, 0.0), bare, atol=1e-12)
    if isinstance(adapter, OutputRotation):
        left = (adapter.gain - 1).reshape(-1, *(1,) * (weight.ndim - 1)) * weight
        for shares in (turn_whole, turn_comfyui):
            assert np.abs(adapter._replace(shares=shares).delta(weight, 0.0)).max() < 1e-12
    np.testing.assert_allclose(adapter.delta(weight, 0.0), left, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("shape", "name"), [k for k in KINDS if k[1].split("-")[0] in ("lora", "loha", "lokr")])
def test_rows_are_the_deltas(shape, name):
    weight, found = pair(draws(4), KERNELS[shape])
    adapter, _ = found[name]
    part = adapter.rows(weight.shape, slice(3, 7))
    np.testing.assert_allclose(part, adapter.delta(weight)[3:7], rtol=0, atol=1e-13)


def test_biases():
    n = draws(5)
    bias, gain, diff_b = n(O), n(O), n(O)
    layer, x = Linear(n(O, I), bias), n(3, I)
    base = x @ layer.weight.T + bias
    for adapter, weight in (
        (IA3(gain, on_bias=True), gain[:, None] * layer.weight),
        (Full(None, diff_b), layer.weight),
        (Full(0.5 * layer.weight, diff_b), 1.5 * layer.weight),
    ):
        more = adapter.bias_delta(bias)
        assert more is not None
        out = base.copy()
        adapter.forward(x, base, layer, out)
        assert distance(out, x @ weight.T + bias + more) < 1e-13
    assert IA3(gain).bias_delta(bias) is None and Full(layer.weight).bias_delta(bias) is None
    np.testing.assert_allclose(IA3(gain, on_bias=True).bias_delta(bias), gain * bias - bias)


def test_dora_over_the_bases_lengths():
    """ComfyUI's rows: |weight| where everybody else has |weight + delta|."""
    n = draws(9)
    weight, inner, gain = n(O, I), LoRA(n(2, I), n(O, 2)), abs(n(O))
    adapter = DoRA(inner, gain, of_base=True)
    rows = [gain[o] * (weight + inner.delta(weight))[o] / np.linalg.norm(weight[o]) for o in range(O)]
    assert distance(weight + adapter.delta(weight), np.array(rows)) < 1e-13
    x, layer = n(3, I), Linear(weight)
    base = x @ weight.T
    adapter.forward(x, base, layer, out := base.copy())
    assert distance(out, x @ np.array(rows).T) < 1e-13


@pytest.mark.parametrize("on_input", [False, True])
def test_dora_measures_a_weight_once(on_input):
    n = draws(10)
    weight, x = n(O, I), n(3, I)
    adapter = DoRA(LoRA(n(2, I), n(O, 2)), abs(n(I if on_input else O)), on_input)
    outs = [x @ weight.T for _ in range(3)]
    for out, seen in zip(outs, (adapter, adapter.on(weight), adapter.on(2 * weight)), strict=True):
        seen.forward(x, x @ weight.T, Linear(weight), out)
    assert np.array_equal(outs[0], outs[1]) and distance(outs[2], outs[0]) > 0.1


def test_kronecker_is_not_commutative():
    """W1 is the slow factor: out row o1 O2 + o2, in column i1 I2 + i2."""
    w1, w2 = np.zeros((2, 3)), np.zeros((4, 4))
    w1[1, 2], w2[3, 1] = 5, 7
    assert LoKr(w1, w2).delta(np.empty((8, 12)))[1 * 4 + 3, 2 * 4 + 1] == 35


@given(
    outer=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    inner=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    rank=st.integers(1, 6),
    factored=st.tuples(st.booleans(), st.booleans()),
    tokens=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_lokr_linear(outer, inner, rank, factored, tokens, seed):
    n = draws(seed)
    w1 = (n(outer[0], rank), n(rank, outer[1])) if factored[0] else n(*outer)
    w2 = (n(inner[0], rank), n(rank, inner[1])) if factored[1] else n(*inner)
    adapter = LoKr(w1, w2, 0.5)
    weight, x = n(outer[0] * inner[0], outer[1] * inner[1]), n(tokens, outer[1] * inner[1])
    delta = naive.lokr(adapter.full_w1(), adapter.full_w2(), 0.5)
    out = np.zeros((tokens, len(weight)))
    adapter.forward(x, out, Linear(weight), out)
    np.testing.assert_allclose(out, x @ delta.T, rtol=0, atol=1e-11)


@given(
    outer=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    inner=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    form=st.sampled_from(["full", "factored", "tucker"]),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.tuples(*[st.integers(0, 4)] * 4),
    size=st.tuples(st.integers(5, 8), st.integers(5, 8)),
    seed=st.integers(0, 2**32 - 1),
)
def test_lokr_conv2d(outer, inner, kernel, form, stride, dilation, padding, size, seed):
    """Both orders (the cheaper one depends on O1 : I1), blocks of one row, paddings wider than the filter."""
    n = draws(seed)
    R, S = kernel
    K = 2
    w2 = {
        "full": lambda: n(*inner, R, S),
        "factored": lambda: (n(inner[0], K), n(K, inner[1] * R * S)),
        "tucker": lambda: (n(K, inner[0]), n(K, inner[1]), n(K, K, R, S)),
    }[form]()
    adapter = LoKr(n(*outer), w2, 0.5)
    weight = n(outer[0] * inner[0], outer[1] * inner[1], R, S)
    x = n(2, weight.shape[1], *size)
    layer = Conv2d(weight, None, stride, padding, dilation)
    delta = naive.lokr(adapter.full_w1(), adapter.full_w2((R, S)), 0.5)
    expected = naive_conv2d(x, dilated(delta, dilation), np.zeros(len(weight)), stride, padding)
    out = np.zeros_like(expected)
    adapter.forward(x, out, layer, out)
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-11)


def test_float32_stays_float32():
    for kernel in KERNELS.values():
        weight, found = pair(lambda *s: draws(6)(*s).astype(np.float32), kernel)
        x = draws(7)(2, *((I, 5, 6) if kernel else (3, I))).astype(np.float32)
        layer = Conv2d(weight) if kernel else Linear(weight)
        base = layer.apply(x, weight)
        for name, (adapter, _) in found.items():
            out = base.copy()
            adapter.forward(x, base, layer, out, 0.5)
            assert out.dtype == np.float32 and adapter.delta(weight, 0.5).dtype == np.float32, name
            merged = layer.apply(x.astype(np.float64), weight + adapter.delta(weight, 0.5).astype(np.float64))
            assert distance(out, merged) < 2e-6, name


def test_rotations():
    n = draws(8)
    q = skew(n(3, 4, 4))
    for r in (cayley(q), cayley_inverse(q)):
        np.testing.assert_allclose(r @ r.swapaxes(1, 2), np.broadcast_to(np.eye(4), r.shape), atol=1e-14)
    np.testing.assert_allclose(cayley(q), [naive.rotation(one) for one in q], atol=1e-13)
    np.testing.assert_allclose(cayley(q) @ cayley_inverse(q), np.broadcast_to(np.eye(4), q.shape), atol=1e-13)
    np.testing.assert_array_equal(
        skew_from_upper(np.array([[1.0, 2, 3]]), 3), [[[0, 1, 2], [-1, 0, 3], [-2, -3, 0]]]
    )
    small = 0.01 * q
    one, power = np.eye(4), np.linalg.matrix_power
    for terms, last in ((3, 3), (4, 3), (5, 4), (7, 6)):
        series = one + 2 * sum(power(small, n) for n in range(1, last)) + power(small, last)
        np.testing.assert_allclose(cayley_neumann(small, terms), series, rtol=0, atol=1e-15)
    np.testing.assert_allclose(cayley_neumann(small, 2), one + 2 * small, rtol=0, atol=1e-15)
    np.testing.assert_allclose(cayley_neumann(small, 12), cayley(small), rtol=0, atol=1e-13)
    assert np.linalg.norm(limited(q, 0.5)) == pytest.approx(0.5)
    assert limited(q, 0.0) is q and limited(q, 1e6) is q
    assert np.linalg.norm(clamped(q, 0.5)) == pytest.approx(0.5) and clamped(q, 0.0) is q
    np.testing.assert_allclose(clamped(q, 1e6), q, rtol=1e-15)
    each = limited_each(np.concatenate([q, 0 * q[:1], 1e-3 * q[:1]]), 0.5)
    np.testing.assert_allclose(np.linalg.norm(each[:3], axis=(1, 2)), 0.5 / np.sqrt(5))
    np.testing.assert_array_equal(each[3:], [0 * q[0], 1e-3 * q[0]])


@pytest.mark.parametrize(("shape", "padding"), [((24, 30), None), ((24, 30, 3, 2), (1, 1, 0, 1))])
@pytest.mark.parametrize(("K1", "K2"), [(2, 2), (1, 3), (5, 6)])
def test_loha_is_a_lora_of_the_product_of_its_ranks(shape, padding, K1, K2):
    """Below that rank's break-even the factors are used, above it the rows: both are the merged weight."""
    n = draws(K1)
    inputs = int(np.prod(shape[1:]))
    adapter = LoHa(n(24, K1), n(K1, inputs), n(24, K2), n(K2, inputs), scale=0.4)
    np.testing.assert_allclose(adapter.as_lora(shape).delta(n(*shape)), adapter.delta(n(*shape)), atol=1e-13)
    weight = n(*shape)
    layer = Linear(weight) if padding is None else Conv2d(weight, None, 1, padding)
    x = n(3, 30) if padding is None else n(2, 30, 6, 5)
    base = layer.apply(x, weight)
    out = base.copy()
    adapter.forward(x, base, layer, out, 0.7)
    merged = layer.apply(x, weight + adapter.delta(weight, 0.7))
    assert np.linalg.norm(out - merged) <= 1e-13 * np.linalg.norm(merged)
