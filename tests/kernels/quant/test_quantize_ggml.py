"""Packing as ggml's C packs: recorded hashes of its blocks, every type, with importance and without."""

import json
from pathlib import Path

import pytest
from numba import config
from record_quantized import cases, hashes

from refsd.kernels.quant import BLOCK_TYPES

RECORDED = json.loads((Path(__file__).parents[2] / "fixtures" / "quantized.json").read_text())["blocks"]


def test_every_type_is_recorded():
    assert set(RECORDED) == set(BLOCK_TYPES)


@pytest.mark.parametrize("name", RECORDED)
def test_blocks_of_ggml(name):
    kind = BLOCK_TYPES[name]
    # As Python, which takes minutes, every other pair of blocks (an importance is as wide as two), and columns that
    # never fired stand for the other importances.
    slow = {"bell", "outliers"} if "plain" in RECORDED[name] else {"outliers"}
    for case, x, importance in cases(kind):
        if config.DISABLE_JIT and case in slow:
            continue
        rows = [row for row in range(len(x)) if row % 4 < 2 or not config.DISABLE_JIT]
        ours = kind.quantize(x[rows]) if importance is None else kind.quantize(x[rows], importance)
        recorded = RECORDED[name][case].split()
        assert hashes(ours) == [recorded[row] for row in rows], case
