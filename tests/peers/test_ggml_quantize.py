"""Packing against ggml's own C, every type, with importance and without.

$REFSD_GGML_QUANTS is a library of ggml-quants.c as the C says, without contraction; $REFSD_GGML a folder with an
older ggml as it is built by default.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import quantize_inputs as inputs
from record_quantized import by_ggml, cases, load

from refsd.engines.ggml.library import library_files
from refsd.kernels.quant import BLOCK_TYPES
from refsd.kernels.quant.block_type import Importance

pytestmark = pytest.mark.peer

# Those that ggml 0.9.8 lacks; IQ1_M's sums were put in another order since.
NEWER = {"nvfp4", "q1_0", "q2_0", "iq1_m"}


@pytest.fixture(scope="module")
def reference():
    return load(os.environ["REFSD_GGML_QUANTS"])


@pytest.fixture(scope="module")
def default_build():
    return load(next(f for f in library_files(Path(os.environ["REFSD_GGML"])) if "base" in f.name))


def awkward_for_ggml(name: str, x: np.ndarray) -> np.ndarray:
    """Blocks with a group of zeros before another: `test_iq3_s_after_zeros` has them."""
    empty = (x.reshape(len(x), -1, min(32, x.shape[1])) == 0).all(axis=2)
    return (empty[:, :-1] & ~empty[:, 1:]).any(axis=1) if name == "iq3_s" else np.zeros(len(x), bool)


def assert_same(library, name: str, n: int) -> None:
    kind = BLOCK_TYPES[name]
    for case, x, importance in cases(kind, n):
        ours = kind.quantize(x) if importance is None else kind.quantize(x, importance)
        differ = (ours != by_ggml(library, kind, x, importance)).any(axis=1) & ~awkward_for_ggml(name, x)
        assert not differ.any(), f"{case}: {differ.sum()} of {len(x)} blocks, the first {differ.argmax()}"


@pytest.mark.parametrize("name", BLOCK_TYPES)
def test_the_c_as_written(reference, name):
    assert_same(reference, name, 40 if name[:3] in ("iq1", "iq2", "iq3") else 400)


@pytest.mark.parametrize("name", [name for name in BLOCK_TYPES if name not in NEWER])
def test_a_default_build(default_build, name):
    assert_same(default_build, name, 40)


@pytest.mark.parametrize("name", [name for name in BLOCK_TYPES if name[:3] not in ("iq1", "iq2", "iq3")])
@pytest.mark.parametrize("size", [1e-45, 1e-41, 1e-37, 1e-20, 1e6, 1e20, 1e37])
def test_subnormal_and_huge(reference, name, size):
    """Scales that underflow, and that float16 cannot hold. ggml's search on grids stops the process here."""
    kind = BLOCK_TYPES[name]
    with np.errstate(all="ignore"):
        x = np.clip(inputs.rows(kind.block, 8) * np.float32(size), -3e38, 3e38)
    assert (kind.quantize(x) == by_ggml(reference, kind, x)).all()
    if kind.importance is Importance.OPTIONAL:
        _, importance = next(inputs.importances(kind.block))
        assert (kind.quantize(x, importance) == by_ggml(reference, kind, x, importance)).all()


def test_mxfp4_at_powers_of_two(reference):
    """Around 2^k: there the logarithm's rounding decides the scale."""
    powers = np.exp2(np.arange(-120, 127, dtype=np.float32))
    bits = powers.view(np.int32)[:, None] + np.arange(-40, 41, dtype=np.int32)
    x = np.zeros((bits.size, 32), np.float32)
    x[:, 7] = bits.reshape(-1).view(np.float32)
    kind = BLOCK_TYPES["mxfp4"]
    assert (kind.quantize(x) == by_ggml(reference, kind, x)).all()


def test_nvfp4_scales(reference):
    """Every kind of scale: none, subnormal, rounded half up, cut."""
    x = np.zeros((4096, 64), np.float32)
    x[:, ::16] = np.exp2(np.linspace(-12, 14, x[:, ::16].size, dtype=np.float32)).reshape(-1, 4)
    x[:, 1::16] = x[:, ::16] * np.float32(-0.3)
    kind = BLOCK_TYPES["nvfp4"]
    assert (kind.quantize(x) == by_ggml(reference, kind, x)).all()


@pytest.mark.parametrize("empty", [(0,), (3,), (0, 1, 5), (7,), range(8)])
def test_iq3_s_after_zeros(reference, empty):
    """ggml does not step over the rows and signs of a group of zeros: those of all later groups stand too early."""
    kind = BLOCK_TYPES["iq3_s"]
    x = inputs.rows(256, 6)[:24].reshape(-1, 8, 32).copy()
    x[x == 0] = 1
    x[:, list(empty)] = 0
    ours, theirs = kind.quantize(x.reshape(-1, 256)), by_ggml(reference, kind, x.reshape(-1, 256))
    moved = ours.copy()
    for first, bytes_of_a_group in ((2, 8), (74, 4)):
        part = ours[:, first : first + 8 * bytes_of_a_group].reshape(-1, 8, bytes_of_a_group)
        early = np.zeros_like(part)
        early[:, : 8 - len(empty)] = np.delete(part, list(empty), axis=1)
        moved[:, first : first + 8 * bytes_of_a_group] = early.reshape(len(x), -1)
    assert (moved == theirs).all()
    assert (
        abs(kind.dequantize(ours) - x.reshape(-1, 256)).mean()
        <= abs(kind.dequantize(theirs) - x.reshape(-1, 256)).mean()
    )
