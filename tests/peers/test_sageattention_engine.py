"""SageAttention as an engine: right where its blocks are whole, its finding named, and bugs put into it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from refsd.cases import select
from refsd.engines import registry
from refsd.engines.reference import Reference
from refsd.golden import conform
from refsd.judges import judges

pytestmark = pytest.mark.peer

_CASES = select("attention_int8/*")


@pytest.fixture(scope="module")
def engine():
    (found,) = registry.find("sageattention")
    return found.engine


@pytest.fixture(scope="module")
def runner():
    truth = Reference()
    return conform.Runner(judges(None), lambda case: truth.run(case, case.realize()))


def _whole(case) -> bool:
    return case.inputs["k"].shape[1] % 64 == 0


def test_keys_that_are_not_there_are_named(engine, runner):
    results = conform.run(runner, [engine], _CASES)
    failed = {r.case.split("/")[1].split("-")[0]: r.reason for r in results if not r.conforms}
    assert {*failed} == {"few", "words"}
    assert all("keys that the last block lacks count" in reason for reason in failed.values())
    assert sum(r.status == "pass" for r in results) >= 6


@pytest.mark.parametrize("seed", range(1, 11))
def test_no_false_alarm(seed, engine, runner):
    cases = [
        msgspec.structs.replace(
            case, inputs={name: msgspec.structs.replace(recipe, seed=seed) for name, recipe in case.inputs.items()}
        )
        for case in _CASES
        if _whole(case)
    ]
    results = conform.run(runner._replace(explains=False), [engine], cases)
    assert [(r.case, r.reason) for r in results if not r.conforms] == []
    assert sum(r.status == "pass" for r in results) >= 5


@pytest.mark.parametrize(("dtype", "profile"), [("float16", "torch-f16-sage"), ("bfloat16", "torch-bf16-sage")])
def test_a_model_that_attends_by_sageattention(dtype, profile):
    """It is right under the profile, and its attention wrong as torch's own, as far as float16 shows it."""
    script = Path(__file__).with_name("sageattention_model.py")
    # Triton reads it where it is imported, and torch imports Triton.
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-P", script, dtype, profile], env=environment, capture_output=True, text=True, check=True
    )
    declared, torchs = json.loads(done.stdout.splitlines()[-1])
    assert declared["passed"] and declared["taps"] > 10, declared
    if dtype == "float16":
        assert not torchs["passed"] and "scores are products of int8" in torchs["text"], torchs
