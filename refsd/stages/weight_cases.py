"""Stored tensors that engines are asked to turn into weights (refsd/stages/weights.py)."""

import numpy as np

from refsd.golden.recipe import Recipe
from refsd.stages.stage import case

PARTS = "data", "second", "third"
SCALES = "scale", "second_scale", "third_scale"
# Scales of a scale's codes, one for so many.
NESTED = 256


def _case(label: str, kind: str, ne: list[int], layer: list[int], parts: int = 1, **more):
    size = int(np.prod(ne))
    blocks = kind in ("q8_0", "q4_0")
    recipe = Recipe((size,), kind, exponent=-8 if blocks else -17)
    inputs: dict[str, Recipe] = dict.fromkeys(PARTS[:parts], recipe)
    scales = more.pop("scales", None)
    if scales == ():
        inputs["scale"] = Recipe((), data="constant", offset=0.375)
    elif scales:
        inputs["scale"] = Recipe(scales, data="positive", exponent=-18, offset=0.125)
    for name, scale in zip(SCALES, more.pop("own", ()), strict=False):
        inputs[name] = Recipe((), data="constant", offset=scale)
    added = more.pop("added", 0)
    if added:
        inputs["added"] = Recipe((added, layer[1]))
    return case("weights", label, inputs, ne=ne, layer=layer, **more)


def _four_bits(label: str, kind: str, ne: list[int], each: int, nested: bool = False):
    """nested: the scales are codes too, more than one scale's worth"""
    groups, pairs = (-(-int(np.prod(ne)) // n) for n in (each, 2))
    inputs = {"data": Recipe((pairs,), "i32", "token_ids", 0, n=256)}
    scale = lambda n: Recipe((n,), data="positive", exponent=-18, offset=0.125)
    inputs["absmax"] = Recipe((groups,), "i32", "token_ids", 0, n=256) if nested else scale(groups)
    if nested:
        inputs |= {"nested_absmax": scale(-(-groups // NESTED)), "nested_map": Recipe((256,), exponent=-19)}
    more = {"offset": 0.75} if nested else {}
    return case("weights", label, inputs, ne=ne, layer=ne[::-1], kind=kind, each=each, **more)


CASES = (
    _case("linear-f16", "f16", [24, 40], [40, 24]),
    _case("square-f32", "f32", [32, 32], [32, 32]),
    _case("square-q8_0", "q8_0", [32, 32], [32, 32]),
    _case("linear-q4_0", "q4_0", [64, 24], [24, 64]),
    _case("conv-f16", "f16", [3, 2, 8, 6], [6, 8, 2, 3]),
    _case("conv-kept-flat", "f16", [64, 27], [24, 8, 3, 3]),
    _case("pointwise", "f32", [16, 16], [16, 16, 1, 1], join="pointwise"),
    _case("pointwise-as-linear", "f16", [1, 1, 24, 16], [16, 24]),
    _case("fused-qkv", "bf16", [16, 16], [48, 16], 3, join="rows"),
    _case("fused-qkv-q8_0", "q8_0", [32, 16], [48, 32], 3, join="rows"),
    _case("shift-and-scale", "f32", [12, 20], [20, 12], join="shift and scale"),
    _case("fp8-scaled", "f8_e4m3", [24, 16], [16, 24], scales=()),
    _case("fp8-e5m2-scaled", "f8_e5m2", [24, 16], [16, 24], scales=()),
    # Queries, keys and values that were quantised apart.
    _case("fp8-fused-own", "f8_e4m3", [16, 16], [48, 16], 3, join="rows", own=(0.375, 0.8125, 0.1875)),
    _case("fp8-scaled-rows", "f8_e4m3", [24, 24], [24, 24], scales=(24, 1)),
    _case("fp8-scaled-inputs", "f8_e4m3", [24, 24], [24, 24], scales=(1, 24)),
    _case("fp8-scaled-blocks", "f8_e4m3", [48, 48], [48, 48], scales=(3, 3)),
    # Blocks of 16 x 16, the last rows' and columns' cut short.
    _case("fp8-scaled-blocks-cut", "f8_e4m3", [24, 40], [40, 24], scales=(3, 2)),
    _case("fp8-scaled-blocks-of-rows", "f8_e5m2", [64, 24], [24, 64], scales=(24, 4)),
    # A row is no whole number of blocks.
    _four_bits("nf4", "nf4", [40, 24], 32),
    _four_bits("fp4", "fp4", [33, 15], 64),
    _four_bits("nf4-nested", "nf4", [208, 48], 32, nested=True),
    _case("table-with-added", "f16", [32, 40], [40, 32], added=3),
    _case("table-q8_0-with-added", "q8_0", [32, 40], [40, 32], added=2),
)
