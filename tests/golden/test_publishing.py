"""A store at a URL is written whole, and what is there stays."""

import fsspec
import numpy as np
import pytest

from refsd.engines.reference import Reference
from refsd.golden.case import Case
from refsd.golden.origins import open_origin
from refsd.golden.publishing import can_publish, publish
from refsd.golden.recipe import Recipe
from refsd.golden.store import Store, make
from refsd.numerics.errors import BadInput

CASES = [Case(f"silu/f32/x{n}", "silu", {"x": Recipe((n, 4))}) for n in (1, 2, 3)]
BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    yield f"memory://{tmp_path.name}/goldens" if request.param == "memory" else f"file://{tmp_path}/there"
    fsspec.filesystem("memory").store.clear()


def _store(url, folder) -> Store:
    return Store(folder, origin=open_origin(url, folder))


def _made(url, folder, reference=None, cases=CASES) -> Store:
    store = _store(url, folder)
    make(store, cases, reference or Reference())
    return store


class _Other(Reference):
    """A machine with other last bits."""

    def run(self, case, inputs):
        return {name: np.nextafter(y, 9.0) for name, y in super().run(case, inputs).items()}


def test_what_is_published_is_read_elsewhere(url, tmp_path):
    store = _made(url, tmp_path / "a")
    assert can_publish(store) and [publish(store, case) for case in CASES] == [True] * 3
    assert [publish(store, case) for case in CASES] == [False] * 3
    other = _store(url, tmp_path / "b")
    assert list(other.verify(BY_NAME)) == []
    assert make(other, CASES, _Other()) == 0


def test_of_two_machines_the_first_is_kept_and_nothing_is_damaged(url, tmp_path):
    first, second = _made(url, tmp_path / "a"), _made(url, tmp_path / "b", _Other())
    assert publish(first, CASES[0]) and publish(second, CASES[1])
    assert not publish(second, CASES[0]) and not publish(first, CASES[1])
    assert publish(first, CASES[2])
    reader = _store(url, tmp_path / "c")
    assert list(reader.verify(BY_NAME)) == []
    assert reader.manifest(CASES[0].name).blob == first.manifest(CASES[0].name).blob
    assert reader.manifest(CASES[1].name).blob == second.manifest(CASES[1].name).blob


def test_an_outdated_golden_a_damaged_manifest_and_a_lost_blob_are_replaced(url, tmp_path):
    old = [Case(case.name, "silu", {"x": Recipe((7, 4))}) for case in CASES]
    outdated = _made(url, tmp_path / "a", cases=old)
    assert all(publish(outdated, case) for case in old)
    there = open_origin(url, tmp_path)
    store = Store(tmp_path / "b", origin=there)
    make(store, CASES, Reference())
    assert publish(store, CASES[0])
    there.write("cases/silu/f32/x2.json", b"{")
    assert publish(store, CASES[1])
    blob = f"blobs/{store.manifest(CASES[2].name).blob}.safetensors"
    assert publish(store, CASES[2]) and there.has(blob)
    there._fs.rm(f"{there._root}/{blob}")
    assert publish(store, CASES[2]) and there.has(blob)
    assert list(_store(url, tmp_path / "c").verify(BY_NAME)) == []


def test_a_reader_never_sees_half_a_file(tmp_path, monkeypatch):
    """Where the file system shows a file while it is written, the file has another name until it is whole."""
    there = open_origin(f"file://{tmp_path}/there", tmp_path)
    whole = type(there._fs).pipe_file

    def break_off(fs, path, data, **options):
        whole(fs, path, data[:3])
        raise OSError("the line is dead")

    monkeypatch.setattr(type(there._fs), "pipe_file", break_off)
    with pytest.raises(BadInput, match=r"cases/a.json: cannot be written: the line is dead"):
        there.write("cases/a.json", b"123456")
    assert not there.has("cases/a.json")


def test_a_folder_and_http_are_not_published(tmp_path):
    assert not can_publish(Store(tmp_path / "a"))
    with pytest.raises(BadInput, match="not the store of a URL"):
        publish(Store(tmp_path / "a"), CASES[0])
