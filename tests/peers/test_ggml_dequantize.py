"""Every block type against the newest ggml's own C: every value of every byte, every float16 scale.

$REFSD_GGML_NEWEST is a folder with libggml-base and libggml-cpu. The blocks:
benchmarks/quants_study.py.
"""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest
from naive.quant.bits import number, run

from refsd.kernels.quant import BLOCK_TYPES

pytestmark = pytest.mark.peer

spec = importlib.util.spec_from_file_location(
    "quants_study", Path(__file__).parents[2] / "benchmarks" / "quants_study.py"
)
study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study)


@pytest.fixture(scope="module")
def c():
    return study.C(Path(os.environ["REFSD_GGML_NEWEST"]))


@pytest.mark.parametrize("name", [name for name in BLOCK_TYPES if name != "q8_1"])
def test_values_are_those_of_the_c_code_bit_for_bit(c, name):
    wrong, of, _, _ = study.expanded(BLOCK_TYPES[name], c.dequantize).split()
    assert (wrong, of) == ("0", "of")


def test_q8_1_has_no_peer(c):
    assert study.expanded(BLOCK_TYPES["q8_1"], c.dequantize) == "has none"


def test_a_wrong_value_is_seen(c, monkeypatch):
    kind = BLOCK_TYPES["iq2_xs"]
    broken = kind._replace(dequantize=lambda blocks: np.copysign(kind.dequantize(blocks), 1))
    assert int(study.expanded(broken, c.dequantize).split()[0]) > 1000


L = np.arange(32)
# type: rows of its grid, the bits that number a row
GRIDS = {
    "iq1_s": (2048, np.concatenate([run(8 * (2 + L), 8), run(8 * 34 + 16 * (L // 4) + 3 * (L % 4), 3)])),
    "iq1_m": (2048, np.concatenate([run(8 * L, 8), run(8 * 32 + 4 * L, 3)])),
    "iq2_xs": (512, run(8 * 2 + 16 * L, 9)),
    "iq2_s": (1024, np.concatenate([run(8 * (2 + L), 8), run(8 * 66 + 2 * L, 2)])),
    "iq3_s": (512, np.concatenate([run(8 * (2 + np.arange(64)), 8), run(8 * 66 + np.arange(64), 1)])),
}


@pytest.mark.parametrize("name", GRIDS)
def test_every_row_of_a_grid_is_met(name):
    rows, positions = GRIDS[name]
    blocks = np.concatenate(list(study.all_blocks(BLOCK_TYPES[name]))[-4:])
    met = number(np.unpackbits(blocks, axis=1, bitorder="little"), positions)
    assert np.unique(met).size == rows
