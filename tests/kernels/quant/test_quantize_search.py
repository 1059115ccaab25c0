"""What a quantizer's search promises: less error than plain rounding, and blocks that do not know each other."""

import numpy as np
import pytest
from naive.quant import quantize as naive

from refsd.kernels.quant import BLOCK_TYPES, grids
from refsd.kernels.quant.block_type import Importance
from refsd.kernels.quant.grid_table import grid_table

SEARCHED = [name for name, kind in BLOCK_TYPES.items() if kind.importance is not Importance.UNUSED]
NEEDS = [name for name, kind in BLOCK_TYPES.items() if kind.importance is Importance.REQUIRED]
LARGEST = lambda top: lambda groups: abs(groups).max(axis=1) / top
ROOT_MEAN = lambda groups: np.sqrt((groups**2).mean(axis=1))
# type -> elements under one scale, the grid's rows as odd numbers or -1, 0, 1, even signs, a plain scale
ON_GRID = {
    "iq2_xxs": (32, (grids.IQ2_XXS // 16) * 2 + 1, True, LARGEST(5)),
    "iq2_xs": (16, (grids.IQ2_XS // 16) * 2 + 1, True, LARGEST(5)),
    "iq2_s": (16, (grids.IQ2_S // 16) * 2 + 1, False, LARGEST(5)),
    "iq3_xxs": (32, (grids.IQ3_XXS // 8) * 2 + 1, True, LARGEST(15)),
    "iq3_s": (32, grids.IQ3_S, False, LARGEST(15)),
    "iq1_s": (32, grids.IQ1, False, ROOT_MEAN),
    "iq1_m": (16, grids.IQ1, False, ROOT_MEAN),
}


# Without the JIT a block takes a tenth of a second: there the recorded bits of test_quantize_ggml.py are enough.
searches = pytest.mark.jitted


def bell(name, n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, BLOCK_TYPES[name].block)).astype(np.float32)


def pack(name, x):
    """Without importance where that goes, else with an even one."""
    kind = BLOCK_TYPES[name]
    return kind.quantize(x, np.ones(kind.block)) if name in NEEDS else kind.quantize(x)


@searches
@pytest.mark.parametrize("name", [*naive.SIMPLE, *ON_GRID])
def test_beats_plain_rounding(name):
    """Each in the measure that it minimises, or nearly: with importance, and without."""
    kind, x = BLOCK_TYPES[name], bell(name, 12)
    plain = naive.rounded(name, x) if name in naive.SIMPLE else naive.on_grid(x, *ON_GRID[name])
    error = lambda weights, y: (weights * (y - x) ** 2).sum()
    weighted = np.sqrt((x**2).mean(axis=1, keepdims=True) + x**2)
    packed = kind.quantize(x, np.ones(kind.block))
    assert error(weighted, kind.dequantize(packed)) < error(weighted, plain)
    own = 1 if name in naive.SIMPLE else x**2 + (0.5 if name == "iq2_s" else 0)
    assert error(own, kind.dequantize(pack(name, x))) < 1.001 * error(own, plain)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("q1_0", naive.one_bit),
        ("q2_0", naive.tq),
        ("tq1_0", naive.tq),
        ("tq2_0", naive.tq),
        ("mxfp4", naive.mxfp4),
        ("nvfp4", naive.nvfp4),
    ],
)
def test_without_a_search(name, plain):
    x = bell(name, 16)
    assert np.allclose(BLOCK_TYPES[name].dequantize(BLOCK_TYPES[name].quantize(x)), plain(x), rtol=1e-3, atol=0)


@searches
@pytest.mark.parametrize("name", SEARCHED)
def test_a_heavy_column_is_kept_better(name):
    kind, x = BLOCK_TYPES[name], bell(name, 6)
    importance = np.ones(kind.block)
    importance[::16] = 1e4
    heavy = lambda blocks: ((kind.dequantize(blocks) - x)[:, ::16] ** 2).sum()
    assert heavy(kind.quantize(x, importance)) < 0.9 * heavy(kind.quantize(x, np.ones(kind.block)))


@searches
@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_blocks_are_packed_alone(name):
    """In any order and number, whatever stands beside them."""
    x = bell(name, 5)
    whole = pack(name, x)
    assert (pack(name, x[::-1])[::-1] == whole).all()
    assert (pack(name, np.concatenate([100 * x[3:4], x[:1]]))[1] == whole[0]).all()
    assert pack(name, x[:0]).shape == (0, BLOCK_TYPES[name].bytes)


@searches
@pytest.mark.parametrize("name", sorted(set(BLOCK_TYPES) - {"nvfp4"}))
def test_a_power_of_two_moves_only_the_scale(name):
    """Every product, sum and quotient scales exactly: the codes stay. The sizes keep float16 scales normal."""
    x, expand = 64 * bell(name, 1, seed=3), BLOCK_TYPES[name].dequantize
    assert (expand(pack(name, 32 * x)) == 32 * expand(pack(name, x))).all()


@searches
@pytest.mark.parametrize("name", SEARCHED)
def test_importance_repeats_row_after_row(name):
    kind, x = BLOCK_TYPES[name], bell(name, 4)
    importance = np.random.default_rng(5).random(2 * kind.block).astype(np.float32)
    whole = kind.quantize(x, importance)
    assert (kind.quantize(x[2:], importance) == whole[2:]).all()
    assert (kind.quantize(x, 8 * importance) == whole).all()
    assert (kind.quantize(x, importance[::-1]) != whole).any()


@pytest.mark.parametrize("name", SEARCHED)
def test_importance_must_fit(name):
    kind, x = BLOCK_TYPES[name], bell(name, 2)
    for columns in (0, kind.block - 1, 3 * kind.block):
        with pytest.raises(ValueError, match=f"importance of {columns} columns"):
            kind.quantize(x, np.ones(columns))
    if name in NEEDS:
        with pytest.raises(ValueError, match="needs an importance"):
            kind.quantize(x)


@pytest.mark.parametrize("name", BLOCK_TYPES)
@pytest.mark.parametrize("value", [np.nan, *(pytest.param(v, marks=searches) for v in (np.inf, -np.inf))])
def test_what_is_not_finite_stops_nothing(name, value):
    x = bell(name, 2)
    x[0, 3] = value
    assert (pack(name, x)[1] == pack(name, x[1:])[0]).all()


@pytest.mark.parametrize("name", SEARCHED)
def test_zeros_stay_zeros(name):
    x = np.zeros((1, BLOCK_TYPES[name].block), np.float32)
    assert (BLOCK_TYPES[name].dequantize(pack(name, x)) == 0).all()
    assert (BLOCK_TYPES[name].dequantize(BLOCK_TYPES[name].quantize(x, np.ones(x.size))) == 0).all()


@pytest.mark.parametrize(("grid", "distances"), [(grids.IQ2_XXS, 2), (grids.IQ3_S, 3)])
def test_neighbours_by_brute_force(grid, distances):
    table = grid_table(grid, distances)
    levels = table.levels.astype(int)
    points = np.arange(len(table.row_of))[:, None] // table.base ** np.arange(grid.shape[1]) % table.base
    on_grid = table.row_of >= 0
    assert (points[on_grid] == levels[table.row_of[on_grid]]).all() and on_grid.sum() == len(grid)
    for point in np.flatnonzero(~on_grid)[::97]:
        distance = ((levels - points[point]) ** 2).sum(axis=1)
        near = np.flatnonzero(distance <= np.unique(distance)[distances - 1])
        expected = sorted(near, key=lambda row: (distance[row], row))
        assert table.neighbours[table.first[point] : table.first[point + 1]].tolist() == expected
