"""Cases of operations through ONNX, judged."""

import pytest

from refsd.engines import registry
from refsd.engines.by_onnx import missing
from refsd.engines.reference import Reference
from refsd.golden import conform
from refsd.golden.operations import OPERATIONS
from refsd.judges import judges
from refsd.onnx.case_model import refuses
from refsd.onnx.operations import FUNCTIONS

ENGINES = ("onnx-reference", "onnxruntime")
# Of each operation one case that compiles little: of weights in float32, if it has such.
SMALL = {
    op: min(operation.cases, key=lambda case: sum(recipe.type != "f32" for recipe in case.inputs.values()))
    for op, operation in OPERATIONS.items()
    if not refuses(operation.cases[0])
}


@pytest.fixture(scope="module")
def engines():
    return [found.engine for name in ENGINES for found in registry.find(name)]


@pytest.fixture(scope="module")
def runner():
    truth = Reference()
    return conform.Runner(judges(None), lambda case: truth.run(case, case.realize()))


def test_every_operation_is_said():
    assert {*FUNCTIONS} == {*OPERATIONS}


@pytest.mark.parametrize("op", SMALL)
def test_operations(engines, runner, op):
    results = conform.run(runner, engines, [SMALL[op]])
    assert [(r.engine, r.status) for r in results] == [(engine.name, "pass") for engine in engines]


def test_blocks_that_onnx_lacks_are_refused(engines):
    case = next(case for case in OPERATIONS["dequantize"].cases if case.inputs["x"].type == "q4_k")
    assert {engine.refuses(case) for engine in engines} == {"ONNX has no q4_k"}


def test_models_are_refused(engines):
    from refsd.cases import CASES

    case = next(case for case in CASES.values() if case.op == "model/unet")
    assert {engine.refuses(case) for engine in engines} == {"refsd says no model/unet in ONNX"}


def test_a_package_that_is_missing_is_named():
    (found,) = missing("onnxruntime", "onnx", "no_such_package")
    assert found.engine is None
    assert found.why_not == "no_such_package is not installed: pip install 'refsd[onnx]'"
