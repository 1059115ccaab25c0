"""Stages as diffusers, transformers and LyCORIS compute them, judged in float32 like any engine's."""

import pytest

from refsd.cases import select
from refsd.engines.reference import Reference
from refsd.engines.torch.engine import TorchEngine, find
from refsd.engines.torch.stages import STAGES
from refsd.golden import verdict
from refsd.golden.conform import Runner, run
from refsd.golden.report import Result
from refsd.judges import judges
from refsd.numerics.profiles import FLOAT64

pytestmark = pytest.mark.peer

ENGINE = next(found.engine for found in find() if found.name == "torch")
assert isinstance(ENGINE, TorchEngine)
CASES = [case for case in select("stage/*") if ENGINE.refuses(case) is None]


def judged(cases) -> list[Result]:
    assert ENGINE is not None
    reference = Reference(FLOAT64)
    return run(Runner(judges(None), lambda case: reference.run(case, case.realize()), ()), [ENGINE], cases)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_stage(case):
    (result,) = judged([case])
    assert result.status == verdict.PASS, result.reason


def test_every_stage_of_the_table_is_answered():
    assert {case.op for case in CASES} == STAGES.keys()


@pytest.mark.parametrize(
    ("case", "wrong", "cause"),
    [
        ("stage/sigmas/sd-leading-n7", {"options": {"offset": 0}}, "steps_offset missing"),
        ("stage/prediction/v", {"prediction": "eps"}, "read as eps"),
        ("stage/guidance/rescale", {"form": "cfg"}, "rescale left out"),
        ("stage/adapter/lokr", {"strength": 0.5}, None),
        ("stage/tiles/diffusers-third", {"overlap": 0.25}, None),
    ],
)
def test_a_setting_that_torch_is_not_told_is_found(case, wrong, cause, monkeypatch):
    (asked,) = select(case)
    stage = STAGES[asked.op]
    told = stage._replace(run=lambda torch, t, p: stage.run(torch, t, {**p, **wrong}))
    monkeypatch.setitem(STAGES, asked.op, told)
    (result,) = judged([asked])
    assert result.status == verdict.FAIL
    assert result.place
    assert cause is None or result.causes[0] == cause
