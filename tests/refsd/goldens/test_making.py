"""Goldens that a process beside this one makes: the same files, and no run waits for a process that has ended."""

import contextlib
import io
from contextlib import contextmanager

import msgspec
import pytest

from refsd.cases import CASES
from refsd.engines.reference import Reference
from refsd.golden.recipe import Recipe
from refsd.golden.store import Store, make
from refsd.goldens import making

CHOSEN = [case for case in CASES.values() if case.op in ("silu", "gelu")][:3]


def files(store):
    return {p.relative_to(store.root): p.read_bytes() for p in store.root.rglob("*") if p.is_file()}


@pytest.mark.jitted
def test_a_process_beside_makes_the_same_goldens(tmp_path, monkeypatch):
    monkeypatch.setattr(making, "_MANY", 1)
    beside, here = Store(tmp_path / "beside"), Store(tmp_path / "here")
    make(here, CHOSEN, Reference())
    with making.truths(beside, CHOSEN) as truth:
        found = truth(CHOSEN[2])  # not in order
        assert found["y"].tobytes() == here.get(CHOSEN[2].name).outputs["y"].tobytes()
    assert len(CHOSEN) == 3 and files(beside) == files(here)


def test_where_that_process_ends_early_this_one_makes_them(tmp_path, monkeypatch):
    @contextmanager
    def ended(store, chosen):
        yield io.StringIO(f"{CHOSEN[0].name}\n")

    monkeypatch.setattr(making, "_MANY", 1)
    monkeypatch.setattr(making, "_maker", ended)
    store = Store(tmp_path)
    make(store, CHOSEN[:1], Reference())
    with making.truths(store, CHOSEN) as truth:
        assert truth(CHOSEN[0]).keys() == {"y"} and store.names() == [CHOSEN[0].name]
        assert truth(CHOSEN[2]).keys() == {"y"} and len(store.names()) == 2


def test_few_goldens_need_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(making, "_maker", None)
    store = Store(tmp_path)
    with making.truths(store, CHOSEN) as truth:
        assert truth(CHOSEN[0])["y"].dtype == "float64" and store.names() == [CHOSEN[0].name]


def test_a_golden_of_an_earlier_case_is_made_again(tmp_path):
    store, case = Store(tmp_path), CHOSEN[0]
    make(store, [msgspec.structs.replace(case, params={}, inputs={"x": Recipe((2, 4))})], Reference())
    with making.truths(store, [case]) as truth:
        assert truth(case)["y"].shape == case.inputs["x"].shape
    assert [path.stem for path in (tmp_path / "blobs").iterdir()] == [store.manifest(case.name).blob]


@pytest.mark.parametrize("how", [KeyboardInterrupt, None])
def test_a_run_that_is_cut_off_ends_the_process(how, tmp_path, monkeypatch):
    """Also where the command has caught the interruption, to write what was judged until then."""
    monkeypatch.setattr(making, "_MANY", 1)
    started = []
    popen = making.subprocess.Popen
    monkeypatch.setattr(making.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[0])
    with contextlib.suppress(KeyboardInterrupt), making.truths(Store(tmp_path), CHOSEN) as truth:
        truth(CHOSEN[0])
        if how is not None:
            raise how
    assert started[0].returncode == -9
