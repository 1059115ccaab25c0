"""ggml's BLAS backend: libggml-blas lies beside the libggml of $REFSD_GGML_NEWEST.

It takes products of 32 rows and columns at least, without a bias: no case of the corpus. So these are its own.
"""

import datetime
import os

import pytest

from refsd.engines import registry
from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.golden.case import Case
from refsd.golden.recipe import Recipe
from refsd.judges import judges
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.profiles import FLOAT64

pytestmark = pytest.mark.peer

# ggml never multiplies by these two.
TYPES = [t for t in ("f32", "f16", "bf16", *BLOCK_TYPES) if t not in ("q8_1", "q8_k")]


def product(type: str, rows: int = 77) -> Case:
    inputs = {"x": Recipe((rows, 512)), "weight": Recipe((96, 512), type, exponent=-19)}
    return Case(f"blas/{type}", "linear", inputs)


@pytest.fixture(scope="module")
def blas():
    (found, *_) = registry.find(f"ggml:{os.environ['REFSD_GGML_NEWEST']}@BLAS")
    assert found.engine is not None, found.why_not
    return found.engine


def judged(engine, cases):
    def truths(case):
        return Reference(FLOAT64).run(case, case.realize())

    runner = conform.Runner(judges(), truths, today=datetime.date(2026, 11, 23))
    return conform.run(runner, [engine], cases)


def test_products_of_every_type_conform(blas):
    assert blas.name == "ggml@BLAS" and blas.device.startswith("BLAS (")
    results = judged(blas, [product(type) for type in TYPES])
    assert len(results) >= 28
    for result in results:
        assert result.status == verdict.PASS, f"{result.case}: {result.reason}"


def test_the_cpus_roundings_are_not_blas(blas, monkeypatch):
    """The CPU rounds activations; declared as BLAS is, without that, its answer must fail."""
    cpu = registry.find(f"ggml:{os.environ['REFSD_GGML_NEWEST']}")[0].engine
    monkeypatch.setattr(cpu, "numerics", blas.numerics)
    results = judged(cpu, [product(type) for type in ("f16", "q8_0", "q4_k")])
    assert [result.status for result in results] == [verdict.FAIL] * 3


def test_what_blas_does_not_take_is_refused(blas):
    assert blas.refuses(product("f32", 31)) == "BLAS does not support this MUL_MAT"
    biased = product("f32")
    biased.inputs["bias"] = Recipe((96,))
    assert blas.refuses(biased) == "BLAS does not support this ADD"
