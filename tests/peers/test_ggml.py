"""A real libggml: that of $REFSD_GGML, or ggml-python's."""

import datetime

import numpy as np
import pytest

from refsd.cases import CASES
from refsd.engines.ggml import engine as ggml
from refsd.engines.ggml.devices import Backend
from refsd.engines.ggml.graph import Graph, Result
from refsd.engines.ggml.library import Library
from refsd.engines.reference import Reference
from refsd.golden import conform, verdict
from refsd.golden.case import Case
from refsd.golden.engine import EngineFailure
from refsd.golden.recipe import SCALE_FIELDS, Recipe
from refsd.judges import judges
from refsd.numerics.profiles import FLOAT32, FLOAT64
from refsd.numerics.tensor import stored

pytestmark = pytest.mark.peer

OPS = [case for case in CASES.values() if case.model is None]


@pytest.fixture(scope="module")
def engines():
    found = ggml.find()
    assert found[0].engine is not None, found[0].why_not
    return {one.name: one.engine for one in found if not one.only_by_name}


@pytest.fixture(scope="module")
def library(engines):
    return engines["ggml"]._library


def runner():
    def truths(case):
        return Reference(FLOAT64).run(case, case.realize())

    return conform.Runner(judges(), truths, today=datetime.date(2026, 11, 20))


def test_at_least_60_cases(engines):
    assert sum(engines["ggml"].refuses(case) is None for case in OPS) >= 60
    assert sum(engines["ggml-flash"].refuses(case) is None for case in OPS) >= 6


@pytest.mark.parametrize("case", OPS, ids=lambda case: case.name)
def test_conforms(engines, case):
    for result in conform.run(runner(), list(engines.values()), [case]):
        assert result.conforms, result.reason


@pytest.mark.parametrize(
    "name", ["linear/f16/tokens-x77x320-o33", "linear/q4_0/tokens-x77x320-o33", "quick_gelu/f32/bend-x33x77"]
)
def test_declaring_float32_would_fail(engines, name, monkeypatch):
    engine = engines["ggml"]
    monkeypatch.setattr(engine, "numerics", lambda case: FLOAT32)
    (result,) = conform.run(runner(), [engine], [CASES[name]])
    assert result.status == verdict.FAIL


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("layer_norm/f32/tiny-x33x320", {"eps": 2e-5}),
        ("attention/f32/scaled-b1-l33-j20-h2-d80", {"scale": 0.1}),
        ("softmax/f32/scaled-x2x3x20x77", {"scale": 0.12}),
    ],
)
def test_a_wrong_parameter_fails(library, name, wrong):
    """The engine is asked another question than it is judged by."""

    class Wrong(ggml.GgmlEngine):
        def run(self, case, inputs):
            return super().run(Case(case.name, case.op, case.inputs, {**case.params, **wrong}), inputs)

    (result,) = conform.run(runner(), [Wrong("ggml", library)], [CASES[name]])
    assert result.status == verdict.FAIL


def test_an_abort_is_a_failure_in_its_own_words(library):
    ids = {"ids": stored(np.array([99])), "weight": stored(np.zeros((4, 32), np.float32))}
    with pytest.raises(EngineFailure, match=r"ended by SIGABRT: .*GGML_ASSERT"):
        library.compute("embedding", {}, ids)
    ids["ids"] = stored(np.array([3]))
    assert library.compute("embedding", {}, ids).shape == (1, 32)


def test_memory_that_nothing_writes_is_poisoned(library):
    with Graph(Backend(Library(library.place), threads=1)) as graph:
        never_set = graph.new_tensor_4d(0, 8, 2, 1, 1)
        y, _ = graph.compute(Result(graph.silu(never_set), (2, 8)))
        assert np.isnan(y).all()


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_do_not_change_a_bit(engines, threads):
    other = {one.name: one.engine for one in ggml.find(threads=threads)}["ggml"]
    for name in ("linear/f16/tokens-x77x320-o33", "conv2d/f16/3x3-n2-c33-k20-h9-w14", "softmax/f32/plain-x33x77"):
        inputs = CASES[name].realize()
        expected = engines["ggml"].run(CASES[name], inputs)["y"]
        np.testing.assert_array_equal(other.run(CASES[name], inputs)["y"], expected)


def test_unequal_padding_on_every_side(engines):
    inputs = {"x": Recipe((2, 3, 6, 7)), "weight": Recipe((4, 3, 3, 2))}
    for padding in ((2, 1, 0, 1), (0, 1, 0, 1), (1, 1, 2, 2)):
        case = Case(f"conv2d/{padding}", "conv2d", inputs, {"padding": padding, "stride": 2})
        (result,) = conform.run(runner(), [engines["ggml"]], [case])
        assert result.conforms, result.reason


@pytest.mark.parametrize("kind", SCALE_FIELDS)
def test_every_block_type(engines, library, kind):
    matrix = Recipe((77, 512), kind)
    cases = [
        Case(f"linear/{kind}", "linear", {"x": Recipe((33, 512)), "weight": matrix}),
        Case(f"dequantize/{kind}", "dequantize", {"x": matrix}),
    ]
    product, values = conform.run(runner(), [engines["ggml"]], cases)
    if kind in library.lacks:
        assert product.reason == values.reason == f"this libggml has no {kind}"
        return
    assert product.status == verdict.PASS, product.reason
    assert values.status == verdict.PASS, values.reason
