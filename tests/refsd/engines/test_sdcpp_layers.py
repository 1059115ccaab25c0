"""Which layer of the reference a node of sd-cli's graph is, by the weight that it reads."""

import numpy as np

from refsd.engines.sdcpp.layers import layer_taps
from refsd.engines.sdcpp.tap import Graph, WeightedOp, WeightHead
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.tensor import StoredTensor, stored

RNG = np.random.default_rng(5)


def drawn(*shape: int, dtype: type = np.float16) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def head(weight: np.ndarray, type: str | None = None) -> WeightHead:
    """As the tap would note a weight that sd-cli keeps in its own type."""
    ne = [*weight.shape[::-1], 1, 1, 1][:4]
    return WeightHead(type or {"f": "f32", "e": "f16"}[weight.dtype.char], tuple(ne), weight.tobytes()[:16])


def graph(*ops: WeightedOp) -> Graph:
    return Graph("", weighted=list(ops))


WEIGHTS = {
    "conv.weight": drawn(6, 3, 3, 3),
    "conv.bias": drawn(6),
    "norm.weight": drawn(6),
    "ff.weight": drawn(8, 4),
    "open.weight": drawn(5, 3, 3, 3),
}
STORED = {name: stored(w) for name, w in WEIGHTS.items()}


def test_the_bias_ends_a_layer_and_a_weight_without_one_is_the_layer():
    products, sums, scaled, matrix = drawn(2, 2), drawn(6, 2, 2), drawn(6), drawn(3, 8)
    wide = {name: w.astype(np.float32) for name, w in WEIGHTS.items()}  # sd-cli widens biases and norms
    seen = graph(
        WeightedOp("MUL_MAT", head(WEIGHTS["conv.weight"]), products),
        WeightedOp("ADD", head(wide["conv.bias"].reshape(1, 6, 1, 1)), sums),
        WeightedOp("MUL", head(wide["norm.weight"]), scaled),
        WeightedOp("MUL_MAT", head(WEIGHTS["ff.weight"]), matrix),
    )
    taps = layer_taps([seen, seen], STORED)
    assert list(taps) == ["conv", "norm.weight", "ff"]
    np.testing.assert_array_equal(taps["conv"], [sums, sums])
    np.testing.assert_array_equal(taps["norm.weight"], [scaled, scaled])
    np.testing.assert_array_equal(taps["ff"], [matrix, matrix])


def test_a_table_that_is_added_whole_is_no_layer():
    """CLIP's positions: the sum with the tokens is not what the reference calls so."""
    assert not layer_taps([graph(WeightedOp("ADD", head(WEIGHTS["ff.weight"]), drawn(8, 4)))], STORED)


def test_a_convolution_without_a_bias_is_left_out():
    assert not layer_taps([graph(WeightedOp("MUL_MAT", head(WEIGHTS["open.weight"]), drawn(4, 5)))], STORED)


def test_a_layer_that_is_used_again_has_a_number():
    first, second = drawn(3, 8), drawn(3, 8)
    ops = [WeightedOp("MUL_MAT", head(WEIGHTS["ff.weight"]), y) for y in (first, second)]
    taps = layer_taps([graph(*ops)], STORED)
    assert list(taps) == ["ff", "ff.1"]
    np.testing.assert_array_equal(taps["ff.1"], [second])


def test_items_of_different_shapes_are_no_batch():
    ops = [graph(WeightedOp("MUL_MAT", head(WEIGHTS["ff.weight"]), drawn(n, 8))) for n in (3, 4)]
    assert not layer_taps(ops, STORED)


def test_weights_that_begin_alike_are_left_out():
    ones = stored(np.ones(6, np.float16))
    seen = graph(WeightedOp("MUL", head(np.ones(6, np.float32)), drawn(6)))
    assert list(layer_taps([seen], {"a.weight": ones})) == ["a.weight"]
    assert not layer_taps([seen], {"a.weight": ones, "b.weight": ones})


def test_a_block_type_is_known_by_its_bytes():
    blocks = BLOCK_TYPES["q8_0"].quantize(drawn(4, 32, dtype=np.float32))
    tensor = StoredTensor("q8_0", (4, 32), blocks.reshape(-1))
    op = WeightedOp("MUL_MAT", WeightHead("q8_0", (32, 4, 1, 1), blocks.tobytes()[:16]), drawn(2, 4))
    assert list(layer_taps([graph(op)], {"a.weight": tensor})) == ["a"]


def test_no_graphs_no_taps():
    assert layer_taps([], STORED) == {}
