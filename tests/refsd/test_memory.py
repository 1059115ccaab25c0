"""What is in memory at a time: rows of a table, a layer of a model, a tensor of a file."""

import mmap
import tracemalloc

import numpy as np
import pytest

from refsd.components import forward
from refsd.files import stored
from refsd.golden.case import ModelRecipe
from refsd.golden.recipe import Recipe, realize
from refsd.models.catalogue import NETWORKS
from refsd.models.flux.network import FluxSize
from refsd.models.mmdit import positions
from refsd.module import Module, WeightCache
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.numerics.tensor import StoredTensor
from refsd.weights import open_checkpoint, recipes

pytestmark = pytest.mark.jitted

ROOM = 2**23  # bytes that the generator works on
RNG = np.random.default_rng(0)


def peak_of(call):
    """Bytes that a call has allocated at most, after a first one."""
    call()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("type", ["f16", "q8_0", "q4_0"])
def test_a_lookup_expands_the_rows_it_asks_for(type):
    rows, width = 20_000, 256
    m = Module({"table.weight": realize(Recipe((rows, width), type, exponent=-20), "t")}, Arithmetic(FLOAT32))
    ids = np.array([[19_999, 0, 7], [7, 7, 123]])
    want = m.weight("table.weight")[ids]
    np.testing.assert_array_equal(m.embedding("table", ids), want)
    assert peak_of(lambda: m.embedding("table", ids)) < 20 * width * 4 < rows * width * 4 / 500
    assert m.embedding("table", ids[:0]).shape == (0, 3, width)
    with pytest.raises(IndexError, match=r"0\.\.20000 do not fit a table of 20000 rows"):
        m.embedding("table", np.array([0, rows]))


def test_positions_are_cropped_before_they_are_expanded():
    size, D = 64, 128
    m = Module({"pos_embed": realize(Recipe((1, size * size, D), "f16"), "p")}, Arithmetic(FLOAT32))
    square = m.weight("pos_embed").reshape(size, size, D)
    np.testing.assert_array_equal(positions(m, 3, 4), square[30:33, 30:34].reshape(12, D))
    assert peak_of(lambda: positions(m, 3, 4)) < size * size * D * 4 / 20


class Drawn(dict):
    """A model's shapes, whose tensors are made when they are asked for."""

    def __getitem__(self, name) -> StoredTensor:
        return realize(recipes.tensor_recipe(name, super().__getitem__(name), "q8_0"), name)


def test_the_peak_of_a_step_does_not_grow_with_the_depth():
    def peak(blocks):
        size = FluxSize(hidden=256, double_blocks=blocks, single_blocks=2 * blocks, mlp=1024, context_dim=64)
        m = Module(Drawn(NETWORKS["flux"].shapes(size)), Arithmetic(FLOAT32))
        inputs = {
            "x": RNG.standard_normal((1, 16, 4, 4), np.float32),
            "timesteps": np.array([0.5]),
            "context": RNG.standard_normal((1, 5, 64), np.float32),
            "y": RNG.standard_normal((1, 768), np.float32),
            "guidance": np.array([3.5]),
        }
        return peak_of(lambda: forward("flux", m, inputs))

    one, four = peak(1), peak(4)
    assert four < 1.1 * one
    assert one < 8 * 256 * 1792 * 4  # linear1, the largest matrix


def test_writing_holds_a_tensor_or_two(tmp_path):
    model = ModelRecipe("zimage", "q8_0", tiny=True)
    largest = max(recipes.Spec(r.type, r.shape).nbytes for r in recipes.all_recipes(model).values())
    peak = peak_of(lambda: recipes.make(model, tmp_path / "model.gguf"))
    assert peak < 2 * largest + ROOM < recipes.size(model)


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="memory cannot be given back here")
def test_a_large_tensor_leaves_memory_when_the_next_is_asked_for(tmp_path, monkeypatch):
    path = recipes.make(ModelRecipe("zimage", "q8_0", tiny=True), tmp_path / "model.gguf")
    monkeypatch.setattr(stored, "LARGE", 2**14)
    left = []

    def let_go(data, header, real=stored.let_go):
        left.append(header)
        real(data, header)

    monkeypatch.setattr(stored, "let_go", let_go)
    weights = open_checkpoint(path).components["zimage"].weights
    headers = {name: weights.file.headers[name] for name in weights}
    large = [name for name, header in headers.items() if header.nbytes >= 2**14]
    before = {name: weights[name].data.copy() for name in weights}
    views = {name: weights[name].data for name in weights}
    assert [h.offset for h in left[: len(large) - 1]] == [headers[name].offset for name in large[:-1]]
    for name, data in views.items():
        np.testing.assert_array_equal(data, before[name])


def test_memory_is_given_back_in_whole_pages():
    page = mmap.PAGESIZE
    asked = []

    class Mapped:
        def madvise(self, option, start, length):
            asked.append((start, length))

    for offset, nbytes in ((page - 1, 2 * page), (page, page), (1, page), (page + 1, page - 1), (0, 3 * page + 5)):
        stored.let_go(Mapped(), stored.Header("u8", (nbytes,), offset, nbytes))  # type: ignore[arg-type]
    assert asked == ([(page, page), (page, page), (0, 3 * page)] if hasattr(mmap, "MADV_DONTNEED") else [])


@pytest.mark.parametrize("type", ["f32", "f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("numerics", [FLOAT32, FLOAT64])
def test_a_product_with_a_borrowed_weight_is_the_same(type, numerics):
    """Two layers in turn, whose weights may share their memory; the answers must not. 63 outputs: not packed."""
    tensors = {f"{name}.weight": realize(Recipe((63, 96), type), name) for name in "ab"}
    x = Arithmetic(numerics).store(RNG.standard_normal((3, 96)))
    kept, borrowed = (Module(tensors, Arithmetic(numerics), cache=WeightCache(budget)) for budget in (2**30, 0))
    for _ in range(2):
        first, second = borrowed.linear("a", x), borrowed.linear("b", x)
        np.testing.assert_array_equal(first, kept.linear("a", x))
        np.testing.assert_array_equal(second, kept.linear("b", x))
    assert not np.array_equal(first, second)


def test_a_product_takes_no_new_memory_for_its_weight():
    m = Module({"a.weight": realize(Recipe((1024, 1024), "q8_0"), "a")}, Arithmetic(FLOAT32))
    x = np.ones((1, 1024), np.float32)
    assert peak_of(lambda: m.linear("a", x)) < 2**16
