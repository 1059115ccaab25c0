"""Samplers written in torch from k-diffusion's, float32, conform; with a bug they do not."""

import pytest
import torch

from refsd.cases import select
from refsd.engines.reference import Reference
from refsd.engines.registry import find
from refsd.engines.torch import trajectories as torch_trajectories
from refsd.golden import conform
from refsd.judges import judges

pytestmark = pytest.mark.peer


def judged(cases="trajectory/*"):
    engine = next(found.engine for found in find("torch") if found.name == "torch")
    assert engine is not None
    truth = Reference()
    runner = conform.Runner(judges(), lambda case: truth.run(case, case.realize()))
    return conform.run(runner, [engine], select(cases))


def test_torch_conforms():
    results = judged()
    assert {r.status for r in results} == {"pass", "refused"}, [r.reason for r in results if not r.conforms]
    assert sum(r.status == "pass" for r in results) >= 20


def test_a_flow_with_the_other_ancestral_step_does_not(monkeypatch):
    monkeypatch.setitem(torch_trajectories.SAMPLERS, "flow/euler_a", torch_trajectories.SAMPLERS["euler_a"])
    (result,) = judged("trajectory/flow/euler_a/simple")
    assert result.status == "fail" and "not the flow's" in result.reason


def test_half_the_eta_does_not(monkeypatch):
    right = torch_trajectories.SAMPLERS["euler_a"]
    wrong = lambda *given: right(torch, *given[1:-1], 0.0)
    monkeypatch.setitem(torch_trajectories.SAMPLERS, "euler_a", wrong)
    (result,) = judged("trajectory/euler_a/karras")
    assert result.status == "fail" and "the reference agrees if eta is missing" in result.reason
