"""Every operation that ONNX can say, by engines that read it: what conforms, what they get wrong, and a lie."""

import pytest

from refsd.engines import registry
from refsd.engines.reference import Reference
from refsd.golden import conform
from refsd.golden.operations import OPERATIONS
from refsd.judges import judges
from refsd.numerics.profiles import ONNX_F32, OPENVINO_BF16

pytestmark = pytest.mark.peer

ARGUMENTS = ("onnx-reference", "onnxruntime", "openvino")
# Engine -> cases that it gets wrong: docs/onnx.md. OpenVINO's front end drops antialias, silently.
_SMOOTH = ("resize_bilinear/f32/smooth-down-", "resize_bicubic/f32/smooth-down-", "resize_bicubic/f32/smooth-up-")
WRONG = {"openvino": _SMOOTH, "openvino-f32": _SMOOTH}


@pytest.fixture(scope="module")
def engines():
    return {found.engine.name: found.engine for name in ARGUMENTS for found in registry.find(name) if found.engine}


@pytest.fixture(scope="module")
def runner():
    truth = Reference()
    return conform.Runner(judges(None), lambda case: truth.run(case, case.realize()))


def test_the_engines_are_there(engines):
    assert [*engines] == ["onnx-reference", "onnxruntime", "openvino", "openvino-f32"]


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_case(engines, runner, op):
    results = conform.run(runner._replace(explains=False), [*engines.values()], OPERATIONS[op].cases)
    for result in results:
        wrong = result.case.startswith(WRONG.get(result.engine, ("-",)))
        assert result.status in (("fail",) if wrong else ("pass", "refused")), (result.engine, result.case)


def test_a_wrong_declaration_is_found(engines, runner, monkeypatch):
    """OpenVINO as it comes computes in bfloat16 here, and says so; as float32 it fails."""
    engine = engines["openvino"]
    case = OPERATIONS["conv2d"].cases[0]
    if engine.numerics(case) is not OPENVINO_BF16:
        pytest.skip("this processor has no bfloat16")
    monkeypatch.setattr(engine, "_numerics", lambda case: ONNX_F32)
    (result,) = conform.run(runner, [engine], [case])
    assert result.status == "fail"
    assert "bfloat16" in result.reason
