"""Goldens that a process beside this one makes: the same files, and no run waits for a process that has ended."""

import io
from contextlib import contextmanager

import pytest

from refsd import goldens
from refsd.cases import CASES
from refsd.engines.reference import Reference
from refsd.golden.store import Store, make

CHOSEN = [case for case in CASES.values() if case.op in ("silu", "gelu")][:3]


def files(store):
    return {p.relative_to(store.root): p.read_bytes() for p in store.root.rglob("*") if p.is_file()}


@pytest.mark.jitted
def test_a_process_beside_makes_the_same_goldens(tmp_path, monkeypatch):
    monkeypatch.setattr(goldens, "_MANY", 1)
    beside, here = Store(tmp_path / "beside"), Store(tmp_path / "here")
    make(here, CHOSEN, Reference())
    with goldens.truths(beside, CHOSEN) as truth:
        # Not asked for in order, nor all of them: none is left out.
        found = truth(CHOSEN[1])
    assert found["y"].tobytes() == here.get(CHOSEN[1].name).outputs["y"].tobytes()
    assert len(CHOSEN) == 3 and files(beside) == files(here)


def test_where_that_process_ends_early_this_one_makes_them(tmp_path, monkeypatch):
    @contextmanager
    def ended(store, chosen):
        yield io.StringIO(f"{CHOSEN[0].name}\n")

    monkeypatch.setattr(goldens, "_MANY", 1)
    monkeypatch.setattr(goldens, "_maker", ended)
    store = Store(tmp_path)
    make(store, CHOSEN[:1], Reference())
    with goldens.truths(store, CHOSEN) as truth:
        assert truth(CHOSEN[0]).keys() == {"y"} and store.names() == [CHOSEN[0].name]
        assert truth(CHOSEN[2]).keys() == {"y"} and len(store.names()) == 3


def test_few_goldens_need_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(goldens, "_maker", None)
    store = Store(tmp_path)
    with goldens.truths(store, CHOSEN) as truth:
        assert len(store.names()) == 3 and truth(CHOSEN[0])["y"].dtype == "float64"


def test_a_run_that_is_cut_off_ends_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(goldens, "_MANY", 1)
    started = []
    popen = goldens.subprocess.Popen
    monkeypatch.setattr(goldens.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[0])
    with pytest.raises(KeyboardInterrupt), goldens.truths(Store(tmp_path), CHOSEN):
        raise KeyboardInterrupt
    assert started[0].returncode == -9
