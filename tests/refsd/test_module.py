"""Module finds weights by name, keeps what it is told to, and lets taps listen."""

import inspect

import ml_dtypes
import numpy as np
import pytest

from refsd.adapters import Adapters
from refsd.golden.operations import OPERATIONS
from refsd.kernels.conv2d_winograd import bytes_of_filters
from refsd.kernels.tanh import tanh
from refsd.module import Module, Taps, WeightCache, block
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.deviations import DEVIATIONS
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32, FLOAT64, GGML_CPU, PROFILES, TORCH_BF16, TORCH_F16, TORCH_F32
from refsd.numerics.tensor import stored

RNG = np.random.default_rng(0)


def weights(**arrays):
    return {name: stored(np.asarray(array, np.float32)) for name, array in arrays.items()}


def matrix(outputs, inputs):
    return RNG.standard_normal((outputs, inputs))


class Counting(dict):
    """Weights that know how often each was read."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.reads = []

    def __getitem__(self, key):
        self.reads.append(key)
        return super().__getitem__(key)


def test_names_are_joined_by_dots():
    m = Module(weights(**{"blocks.1.proj.weight": matrix(3, 2), "blocks.1.proj.bias": [1, 2, 3]}))
    x = np.ones((1, 2))
    want = x @ m.weights["blocks.1.proj.weight"].values().T.astype(np.float64) + [1, 2, 3]
    np.testing.assert_allclose(m["blocks"][1].linear("proj", x), want, rtol=1e-15)
    np.testing.assert_array_equal(m["blocks.1"].linear("proj", x), m.linear("blocks.1.proj", x))


def test_contains_and_count_go_by_whole_names():
    m = Module(weights(**{"in.0.weight": [1], "in.1.weight": [1], "in.3.weight": [1], "inner.0.weight": [1]}))
    assert "in" in m
    assert "in.1" in m
    assert 1 in m["in"]
    assert "inn" not in m
    assert "in.2" not in m
    assert m.count("in") == 2  # a gap ends the row
    assert m["in"].count() == 2
    assert m.count("out") == 0


def test_a_missing_weight_is_named_with_its_prefix():
    m = Module(weights(**{"a.weight": matrix(2, 2)}))
    for ask in (lambda: m["b"].linear("c", np.ones((1, 2))), lambda: m["b"].shape("c"), lambda: m["b"].weight("c")):
        with pytest.raises(BadInput, match=r'the weights lack "b\.c(\.weight)?"'):
            ask()


def test_a_linear_without_bias_adds_none():
    m = Module(weights(**{"a.weight": matrix(4, 3)}))
    x = RNG.standard_normal((2, 5, 3))
    want = np.einsum("nlk,ok->nlo", x, m.weight("a.weight"))
    np.testing.assert_allclose(m.linear("a", x), want, rtol=1e-13, atol=1e-15)


def test_nothing_is_kept_by_default_and_what_fits_is_kept_on_request():
    tensors = Counting(weights(**{"a.weight": matrix(4, 4), "b.weight": matrix(4, 4)}))
    Module(tensors).weight("a.weight")
    Module(tensors).weight("a.weight")
    assert tensors.reads.count("a.weight") == 2

    cache = WeightCache(budget=4 * 4 * 8)
    m = Module(tensors, cache=cache)
    first = m.weight("a.weight")
    m.weight("b.weight")
    tensors.reads.clear()
    assert m.weight("a.weight") is first
    m.weight("b.weight")
    assert tensors.reads == ["b.weight"]
    assert cache.budget == 0


def convolution():
    tensors = Counting(
        weights(**{"c.weight": RNG.standard_normal((33, 32, 3, 3)), "c.bias": RNG.standard_normal(33)})
    )
    return tensors, RNG.standard_normal((1, 32, 32, 33)).astype(np.float32)


def test_transformed_filters_are_kept_where_they_fit():
    tensors, x = convolution()
    truth = Module(tensors).conv2d("c", x, padding=1)
    size = bytes_of_filters(33, 32, 4, np.float32)
    for budget, held in ((size + 33 * 4, "c.weight for winograd4"), (size - 1, "c.weight"), (0, None)):
        cache = WeightCache(budget)
        m = Module(tensors, Arithmetic(FLOAT32), cache=cache)
        first = m.conv2d("c", x, padding=1)
        assert np.linalg.norm(first - truth) <= 5e-6 * np.linalg.norm(truth)
        np.testing.assert_array_equal(m.conv2d("c", x, padding=1), first)
        assert (held in cache._arrays) if held else not cache._arrays
    assert Module(tensors).arithmetic.choose(x.shape, (33, 32, 3, 3), 1, (1, 1, 1, 1)).name == "im2col"


def test_an_adapted_layer_keeps_its_own_weight():
    tensors, x = convolution()
    cache, arithmetic = WeightCache(2**30), Arithmetic(FLOAT32)
    adapters = Adapters({"c": []}, arithmetic)
    Module(tensors, arithmetic, cache=cache, adapters=adapters).conv2d("c", x, padding=1)
    assert set(cache._arrays) == {"c.weight", "c.bias"}


def test_linear_weights_are_packed_where_they_stay_in_memory():
    tensors, x = weights(**{"a.weight": matrix(64, 5), "a.bias": matrix(1, 64)[0]}), RNG.standard_normal((2, 16, 5))
    truth = Module(tensors).linear("a", x)
    x, size = x.astype(np.float32), 64 * 5 * 4
    arithmetic = Arithmetic(FLOAT32)
    for budget, rows, held in (
        (2 * size, 16, "a.weight in panels"),
        (2 * size, 1, "a.weight in panels"),
        (size - 1, 16, None),
    ):
        cache = WeightCache(budget)
        y = Module(tensors, arithmetic, cache=cache).linear("a", x[:, :rows])
        assert np.linalg.norm(y - truth[:, :rows]) <= 1e-6 * np.linalg.norm(truth[:, :rows])
        assert set(cache._arrays) - {"a.bias"} == ({held} if held else set())
    cache = WeightCache(2 * size)
    Module(tensors, arithmetic, cache=cache, adapters=Adapters({"a": []}, arithmetic)).linear("a", x)
    assert set(cache._arrays) == {"a.weight", "a.bias"}
    cache = WeightCache(2 * size)
    Module(tensors, Arithmetic(TORCH_F32), cache=cache).linear("a", x)
    assert set(cache._arrays) == {"a.weight", "a.bias"}


@block
def inner(m, x):
    return m.silu(m.linear("proj", x))


@block
def outer(m, x):
    for i in range(2):
        x = inner(m["blocks"][i], x)
    return x, m.silu(x)


@block
def root(m, x):
    return outer(m["outer"], x)


def tapped(**options):
    tensors = weights(**{f"outer.blocks.{i}.proj.weight": matrix(3, 3) for i in range(2)})
    m = Module(tensors, taps=Taps(**options))
    x = RNG.standard_normal((2, 3))
    return m.taps, root(m, x)


def test_taps_hold_blocks_in_order_and_the_root_is_no_tap():
    taps, (x, y) = tapped()
    assert list(taps) == ["outer.blocks.0", "outer.blocks.1", "outer.0", "outer.1"]
    np.testing.assert_array_equal(taps["outer.blocks.1"], x)
    np.testing.assert_array_equal(taps["outer.1"], y)


def test_taps_hold_operations_on_request_by_a_glob():
    taps, _ = tapped(ops=True)
    assert list(taps)[:3] == ["outer.blocks.0.proj", "outer.blocks.0.silu", "outer.blocks.0"]
    taps, _ = tapped(ops=True, pattern="*.silu")
    assert list(taps) == ["outer.blocks.0.silu", "outer.blocks.1.silu", "outer.silu"]


def test_a_name_that_comes_again_is_numbered():
    m = Module({}, taps=Taps(ops=True))
    x = np.ones(3)
    m.silu(x)
    m.silu(2 * x)
    assert list(m.taps) == ["silu", "silu.1"]
    assert m.taps["silu"][0] != m.taps["silu.1"][0]


def test_a_tap_is_a_copy():
    m = Module({}, taps=Taps(ops=True))
    y = m.silu(np.ones(3))
    y[:] = 7
    assert m.taps["silu"][0] != 7


@pytest.mark.parametrize("numerics", PROFILES.values(), ids=PROFILES)
def test_every_operation_answers_in_the_storage_dtype(numerics):
    """Else plain sums between operations would not round as the engine's do."""
    D = 64
    tensors = weights(
        **{"a.weight": matrix(D, D), "a.bias": matrix(1, D)[0], "norm.weight": matrix(1, D)[0]},
        **{"norm.bias": matrix(1, D)[0], "conv.weight": RNG.standard_normal((3, D, 3, 3)), "conv.bias": [1, 2, 3]},
    )
    m = Module(tensors, Arithmetic(numerics))
    x = m.store(RNG.standard_normal((2, 6, D)))
    image = m.store(RNG.standard_normal((2, D, 4, 5)))
    heads = x.reshape(2, 6, 4, 16)
    answers = [
        m.linear("a", x),
        m.layer_norm("norm", x),
        m.layer_norm(None, x),
        m.rms_norm("norm.weight", x),
        m.group_norm("norm", image),
        m.conv2d("conv", image, padding=1),
        m.conv2d("conv", image, stride=2, padding=(0, 1, 0, 1)),
        m.embedding("a", np.array([[1, 2]])),
        m.silu(x),
        m.gelu(x),
        m.gelu_tanh(x),
        m.quick_gelu(x),
        m.geglu(x),
        m.attention(heads, heads, heads),
        m.timestep_embedding(np.array([1.5, 999.0], m.arithmetic.numerics.compute_dtype), 33),
        m.upsample_nearest(image),
        m.modulate(x, x[:, 0], x[:, 1]),
        m.rope(heads, np.ones((2, 6, 8))),
    ]
    for y in answers:
        assert y.dtype == numerics.storage_dtype
        assert np.isfinite(y.astype(np.float64)).all()


def test_a_view_and_a_read_only_array_are_taken_as_they_are():
    m = Module(
        weights(
            **{"conv.weight": RNG.standard_normal((2, 3, 1, 1)), "norm.weight": [1, 2, 3], "norm.bias": [0] * 3}
        )
    )
    x = RNG.standard_normal((4, 5, 3, 2)).transpose(3, 2, 0, 1)
    x.setflags(write=False)
    np.testing.assert_array_equal(m.conv2d("conv", x), m.conv2d("conv", x.copy()))
    np.testing.assert_array_equal(m.group_norm("norm", x, 3), m.group_norm("norm", x.copy(), 3))
    assert m.silu(x).shape == x.shape
    np.testing.assert_array_equal(m.silu(x), m.silu(x.copy()))


def test_profiles_round_where_they_say():
    tensors = weights(**{"a.weight": matrix(8, 64)})
    tensors["half.weight"] = stored(tensors["a.weight"].values().astype(np.float16))
    x = RNG.standard_normal((3, 64))
    truth = Module(tensors, Arithmetic(FLOAT64))

    def error(numerics, name):
        m = Module(tensors, Arithmetic(numerics))
        y = m.linear(name, m.store(x)).astype(np.float64)
        return np.linalg.norm(y - truth.linear(name, x)) / np.linalg.norm(y)

    assert error(FLOAT32, "a") < 1e-6
    assert error(GGML_CPU, "a") < 1e-6  # an f32 weight leaves activations alone
    assert 1e-5 < error(GGML_CPU, "half") < 1e-3  # an f16 weight rounds them to f16
    assert 1e-5 < error(TORCH_F16, "a") < 2e-3
    assert 1e-3 < error(TORCH_BF16, "a") < 2e-2
    assert Module(tensors, Arithmetic(TORCH_BF16)).store(x).dtype == ml_dtypes.bfloat16


def test_norm_and_silu_in_one_unless_somebody_listens():
    w = weights(**{"n.weight": RNG.standard_normal(8), "n.bias": RNG.standard_normal(8)})
    x = RNG.standard_normal((1, 8, 3, 5))
    for numerics in PROFILES.values():
        m = Module(w, Arithmetic(numerics))
        fused = m.group_norm_silu("n", m.store(x), 4)
        taps = Taps(ops=True)
        apart = Module(w, Arithmetic(numerics), taps=taps).group_norm_silu("n", m.store(x), 4)
        assert list(taps) == ["n", "silu"] and fused.dtype == apart.dtype
        np.testing.assert_allclose(fused.astype(np.float64), apart.astype(np.float64), rtol=0, atol=1e-6)
        if numerics.storage != "float32":
            np.testing.assert_array_equal(fused, apart)


def test_any_kernel_between_two_roundings():
    taps = Taps(ops=True)
    m = Module({}, Arithmetic(TORCH_F16), taps=taps)
    x = m.store(np.linspace(-2, 2, 9))
    y = m.apply(tanh, x)
    assert y.dtype == np.float16 and list(taps) == ["tanh"]
    np.testing.assert_array_equal(y, np.tanh(x.astype(np.float32)).astype(np.float16))


def test_float32_angles_are_a_deviation():
    ids = np.full((1, 1, 1), 100)
    exact = Module({}).rope_angles(ids, (8,), 1e4)
    other = Module({}, Arithmetic(FLOAT64, [DEVIATIONS["sdcpp/rope-f32-angles"]])).rope_angles(ids, (8,), 1e4)
    assert 0 < np.abs(other - exact).max() < 1e-5


def test_a_transposed_projection_is_a_deviation():
    """Of a square one: no other fits."""
    rng = np.random.default_rng(0)
    x, square, wide = (rng.integers(-9, 10, (rows, 3)).astype(np.float64) for rows in (2, 3, 5))
    deviating = Arithmetic(FLOAT64, [DEVIATIONS["sdcpp/openclip-projection"]])
    for w, arithmetic, want in ((square, None, square), (square, deviating, square.T), (wide, deviating, wide)):
        m = Module(weights(**{"p.weight": w}), *([arithmetic] if arithmetic else []))
        np.testing.assert_array_equal(m.text_projection("p", x), x @ want.T)


def test_the_mean_of_four_pixels_is_a_deviation():
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 6))
    np.testing.assert_array_equal(Module({}).halve(x), x[:, :, ::2, ::2])
    other = Module({}, Arithmetic(FLOAT64, [DEVIATIONS["sdcpp/radiance-bilinear"]])).halve(x)
    np.testing.assert_allclose(other, x.reshape(2, 3, 2, 2, 3, 2).mean((3, 5)), rtol=1e-14)


def test_a_norm_that_is_rounded_before_its_weight():
    rng = np.random.default_rng(4)
    x, weight = rng.standard_normal((3, 8)).astype(np.float16), rng.standard_normal(8).astype(np.float16)
    m = Module({"norm": stored(weight)}, Arithmetic(TORCH_F16))
    wide = x.astype(np.float64)
    unscaled = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_array_equal(m.rms_norm_apart("norm", x), unscaled.astype(np.float16) * weight)
    np.testing.assert_array_equal(m.rms_norm("norm", x), (unscaled * weight).astype(np.float16))
    m = Module({"norm": stored(weight)}, Arithmetic(FLOAT64))
    np.testing.assert_array_equal(m.rms_norm_apart("norm", wide), m.rms_norm("norm", wide))


def test_an_operation_calls_what_it_takes_as_its_page_does():
    """Causes name what the page names, the legend of taps what the method names: "b is read from ..."."""
    for name in OPERATIONS.keys() & vars(Module).keys() - {"rope"}:  # its page draws angles from ids
        inputs = {one.rstrip("?") for one in OPERATIONS[name].inputs} - {"weight", "bias"}
        assert inputs <= inspect.signature(getattr(Module, name)).parameters.keys(), name
