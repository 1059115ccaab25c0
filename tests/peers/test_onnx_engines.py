"""Operations in ONNX, by OpenVINO: what conforms, what it gets wrong, and a wrong declaration."""

import pytest

from refsd.cases import CASES
from refsd.engines import registry
from refsd.engines.reference import Reference
from refsd.golden import conform
from refsd.golden.operations import OPERATIONS
from refsd.judges import judges
from refsd.numerics.processor import cpu_features
from refsd.numerics.profiles import ONNX_F32, OPENVINO_BF16

pytestmark = pytest.mark.peer


@pytest.fixture(scope="module")
def engines():
    return {found.engine.name: found.engine for found in registry.find("openvino") if found.engine}


@pytest.fixture(scope="module")
def runner(waivers):
    truth = Reference()
    return conform.Runner(judges(None), lambda case: truth.run(case, case.realize()), waivers)


def test_the_engines_are_there(engines):
    assert [*engines] == ["openvino", "openvino-f32"]


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_case(engines, runner, op):
    explains = op.endswith("_int8")  # waivers of these name the cause
    results = conform.run(runner._replace(explains=explains), [*engines.values()], OPERATIONS[op].cases)
    assert [(r.engine, r.case, r.status) for r in results if not r.conforms] == []


def test_antialias_is_still_dropped(engines, runner, monkeypatch):
    """Where this fails, OpenVINO has mended it: let the engine take these cases."""
    engine = engines["openvino-f32"]
    monkeypatch.setattr(engine, "_refusal", lambda case: None)
    case = next(case for case in OPERATIONS["resize_bilinear"].cases if "smooth-down" in case.name)
    (result,) = conform.run(runner, [engine], [case])
    assert (result.status, result.causes) == ("fail", ("the other antialias",))


def test_a_wrong_declaration_is_found(engines, runner, monkeypatch):
    """As it comes OpenVINO computes in bfloat16, or rounds activations to 8 bits; declared as float32 it fails.

    Without VNNI it rounds nothing, and conforms.
    """
    engine = engines["openvino"]
    in_bfloat16 = engine.numerics(OPERATIONS["conv2d"].cases[0]) is OPENVINO_BF16
    name = "conv2d/f32/3x3-n2-c33-k20-h9-w14" if in_bfloat16 else "linear/q8_0/odd-x7x160-o33"
    monkeypatch.setattr(engine, "_numerics", ONNX_F32)
    (result,) = conform.run(runner, [engine], [CASES[name]])
    rounds = in_bfloat16 or cpu_features() & {"avx_vnni", "avx512_vnni"}
    assert result.status == ("fail" if rounds else "pass")
    assert not in_bfloat16 or "bfloat16" in result.reason
