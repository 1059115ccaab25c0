"""Requests for a precision, asked of real libraries: which back ends keep them.

$REFSD_GGML_NEWEST (0.25.3) takes all of them, $REFSD_GGML (0.9.8) one for sums alone. Vulkan needs a driver.
"""

import datetime
import os

import pytest

from refsd.cases import CASES, select
from refsd.engines import registry
from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.golden.case import Case
from refsd.golden.recipe import Recipe
from refsd.judges import judges
from refsd.numerics.processor import cpu_features
from refsd.numerics.profiles import FLOAT64

pytestmark = pytest.mark.peer

SUMS = "attention/f16/sums-b1-l20-j320-h2-d40"
LINEAR = [case for case in select("linear/*") if case.inputs["weight"].type not in ("f8_e4m3", "f8_e5m2")]
IN_FLOAT16 = "the request for F32 sums is ignored: they are in float16"


def found(name, library, device=""):
    (one,) = registry.find(f"{name}:{os.environ[library]}{device}")
    assert one.engine is not None, one.why_not
    return one.engine


def judged(engine, cases):
    def truths(case):
        return Reference(FLOAT64).run(case, case.realize())

    return conform.run(conform.Runner(judges(), truths, today=datetime.date(2026, 11, 26)), [engine], cases)


@pytest.mark.parametrize("library", ["REFSD_GGML", "REFSD_GGML_NEWEST"])
def test_the_cpus_flash_attention_ignores_a_request_for_sums_in_float32(library):
    (wrong,) = judged(found("ggml-prec-f32", library), [CASES[SUMS]])
    assert wrong.status == verdict.FAIL and wrong.margin > 10
    assert wrong.causes == (IN_FLOAT16,)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_the_cpus_flash_attention_ends_the_program_at_another_request(name):
    (wrong,) = judged(found(f"ggml-prec-{name}", "REFSD_GGML_NEWEST"), [CASES[SUMS]])
    assert wrong.status == verdict.ERROR and "SIGABRT" in wrong.reason and "ops.cpp" in wrong.reason


def test_the_cpus_products_ignore_a_request_for_activations_in_float32():
    results = judged(
        found("ggml-prec-f32", "REFSD_GGML_NEWEST"), [case for case in LINEAR if "/tokens" in case.name]
    )
    kept = {result.case.split("/")[1] for result in results if result.status == verdict.PASS}
    assert kept == {"f32"}
    wrong = [result for result in results if result.status != verdict.PASS]
    assert len(wrong) >= 20
    for result in wrong:
        (cause,) = result.causes
        assert cause.startswith("the request for F32 activations is ignored: they are rounded to "), result.reason


def test_a_request_for_8_bits_allows_what_the_cpu_does():
    results = judged(found("ggml-prec-q8", "REFSD_GGML_NEWEST"), LINEAR)
    assert [result.reason for result in results if result.status != verdict.PASS] == []
    assert len(results) >= 50


def test_an_older_library_is_asked_for_sums_alone():
    results = judged(found("ggml-prec-f32", "REFSD_GGML"), LINEAR)
    wrong = [result.reason for result in results if result.status not in (verdict.PASS, verdict.REFUSED)]
    # With AVX512-FP16 0.9.8 sums in float16 whatever is requested: docs/findings/ggml-f16-sums.md.
    assert bool(wrong) == ("avx512_fp16" in cpu_features())
    assert all("the request for F32 sums is ignored: they are in float16" in reason for reason in wrong)


def test_blas_keeps_every_request():
    for name in ("f32", "bf16", "f16", "q8"):
        engine = found(f"ggml-prec-{name}", "REFSD_GGML_NEWEST", "@BLAS")
        cases = [
            Case(
                f"blas/{type}",
                "linear",
                {"x": Recipe((77, 512)), "weight": Recipe((96, 512), type, exponent=-19)},
            )
            for type in ("f32", "f16", "bf16", "q8_0", "q4_k")
        ]
        assert [result.status for result in judged(engine, cases)] == [verdict.PASS] * len(cases), name
