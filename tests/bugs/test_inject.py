"""Bugs that engines really had, written once more, are seen, placed and named; an honest engine is not accused."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest
from eighteenth import EIGHTEENTH
from fifteenth import FIFTEENTH
from forgetting import bare, forgotten, listed
from inject import (
    FILES,
    HELD_OUT_SETS,
    INJECTIONS,
    MODELS,
    OPERATIONS,
    PRODUCTS,
    SINCE,
    STAGES,
    STEPS,
    Bench,
    ablate,
    without_lists,
)
from injection import Bug
from mechanisms import Named, splits
from nineteenth import NINETEENTH
from seventeenth import SEVENTEENTH
from sixteenth import SIXTEENTH
from twentieth import TWENTIETH
from twenty_first import TWENTY_FIRST

FAST = (
    *("act-01", "act-04", "att-08", "norm-01", "norm-08", "q-04", "q-09", "rope-03", "rope-06", "time-01"),
    *("smp-14", "lora-13", "lora-17", "te-22", "smp-09", "smp-35", "q-12", "smp-42"),
    *("f-norm-03", "f-q-02", "f-smp-09", "f-te-02", "f-ld-03", "f-vae-04"),
    *("s-act-02", "s-cn-01", "s-ld-01", "s-q-01", "s-res-02", "s-sm-01", "lora-03"),
)

# Bugs that many cases show, each asked of one.
OF_ONE = {"rng-01": "stage/noising/ve-sdcpp", "t-conv-01": "conv3d/f32/3x3x3-n2-*"}


@functools.cache
def _bench() -> Bench:
    def none(model, layout):
        raise AssertionError("no case of a model is asked here")

    return Bench(files=none)


@pytest.mark.jitted
@pytest.mark.parametrize("id", FAST)
def test_a_bug_is_seen_placed_and_named(id):
    outcome = _bench().outcome(id, "", INJECTIONS[id])
    assert outcome.detected and outcome.placed, outcome.reason
    assert outcome.named, outcome.cause or outcome.reason


@pytest.mark.jitted
@pytest.mark.parametrize("id", ["act-01", "rope-06", "smp-14", "lora-17"])
def test_the_engine_without_its_bug_passes(id):
    assert not _bench().outcome(id, "", INJECTIONS[id]._replace(bug=Bug())).detected


@pytest.mark.jitted
@pytest.mark.parametrize("id", ["act-01", "rng-01", "lora-13", "norm-06", "q-04"])
def test_a_bug_is_named_without_its_entry_in_the_lists(id):
    injection = INJECTIONS[id]
    cases = (OF_ONE[id],) if id in OF_ONE else injection.cases
    outcome = without_lists(_bench(), id, "", injection._replace(cases=cases))
    assert outcome.forgotten and outcome.named, outcome.cause or outcome.reason


@pytest.mark.jitted
def test_a_cause_is_marked_with_its_finder_which_can_be_switched_off(monkeypatch):
    one = INJECTIONS["t-conv-01"]._replace(cases=(OF_ONE["t-conv-01"],))
    monkeypatch.setitem(INJECTIONS, "t-conv-01", one)
    told = []
    table = ablate({"q-01": "op", "t-conv-01": "op"}, _bench(), told.append)
    assert [o.finder for o in told] == ["operation.code_values", "operation.generated_mutants"], told
    rows = {row.split(" | ")[0].removeprefix("| "): row.split(" | ")[2:4] for row in table.splitlines()}
    assert rows["operation.generated_mutants"] == ["1", "1: t-conv-01"] and rows["stage.looks"] == ["0", "0"]
    assert not any("\x1e" in o.cause + o.reason for o in told)
    told.clear()
    ablate({"q-01": "op"}, _bench(), told.append, lists=True)
    assert [o.finder for o in told] == ["lists"], told


def test_a_list_is_forgotten_for_a_while():
    before = listed()
    with forgotten({"GELU for SiLU"}):
        assert listed() == before - {"GELU for SiLU"}
    assert listed() == before
    assert bare("conv2d before it: bias missing", before) == bare("bias missing, in the last 3 alone", before)


def test_held_out_bugs_are_none_of_the_lists():
    listed = {**OPERATIONS, **PRODUCTS, **MODELS, **FILES, **STAGES, **STEPS}
    held_out = [one for table in HELD_OUT_SETS.values() for one in table.items()]
    assert not {id for id, _ in held_out} & listed.keys()
    assert len({id for id, _ in held_out}) == len(held_out)
    assert all(one.level and one.source for _, one in held_out)


def test_bugs_that_have_a_case_since_had_none_when_drawn():
    drawn = {**FIFTEENTH, **SIXTEENTH, **SEVENTEENTH, **EIGHTEENTH, **NINETEENTH, **TWENTIETH, **TWENTY_FIRST}
    assert all(drawn[id].injection is None for id in SINCE) and SINCE.keys() <= INJECTIONS.keys()


@pytest.mark.jitted
@pytest.mark.parametrize("id", SINCE)
def test_a_bug_that_has_a_case_since_is_seen_placed_and_named(id):
    outcome = _bench().outcome(id, "", SINCE[id])
    assert outcome.detected and outcome.placed and outcome.named, outcome.cause or outcome.reason


def test_halves_count_only_kinds_that_the_first_half_has():
    bugs = [Named(f"a-{i}", "op", "eps ten times too large") for i in range(6)]
    assert splits(bugs, 2, 1) == [(1.0, 1.0)] * 2
    strangers = [Named(f"b-{i}", "op", f"{'xyz'[i % 3]}{i}") for i in range(6)]
    assert splits(strangers, 2, 1) == [(0.0, 1.0)] * 2
    assert splits([Named("c", "op", None)] * 4, 1, 1) == [(0.0, 0.0)]


def test_a_list_that_is_none_is_refused(tmp_path):
    path = tmp_path / "bugs.json"
    path.write_text('[{"name": "act-01"}]')
    command = [sys.executable, str(Path(__file__).with_name("inject.py")), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (
        done.returncode == 2
        and done.stderr.startswith(f"{path}: expected a list")
        and "Traceback" not in done.stderr
    )
