"""Goldens from packed files and URLs: the same as from the folder, each byte checked."""

import hashlib
import io
import shutil
import sys
import tarfile

import fsspec
import numpy as np
import pytest

from refsd.engines.reference import Reference
from refsd.golden.case import Case
from refsd.golden.origins import SUMS, PackedFile, is_remote, open_origin
from refsd.golden.packing import pack
from refsd.golden.recipe import Recipe
from refsd.golden.store import Store, make
from refsd.numerics.errors import BadInput

CASES = [Case(f"silu/f32/x{n}", "silu", {"x": Recipe((n, 4))}) for n in (1, 2, 3)]
NAMES = [case.name for case in CASES]


@pytest.fixture
def store(tmp_path):
    place = Store(tmp_path / "goldens")
    make(place, CASES, Reference())
    return place


@pytest.fixture
def packed(store, tmp_path):
    path = tmp_path / "goldens.tar"
    return path, pack(store, NAMES, path)


@pytest.fixture
def memory():
    """An empty file system in memory: memory://"""
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    yield fs
    fs.store.clear()


def _same(origin, store, tmp_path) -> None:
    """A store that fetches from the origin gives what the folder has, and makes nothing."""
    fetched = Store(tmp_path / "fetched", origin=origin)
    assert fetched.names() == NAMES and not (tmp_path / "fetched").exists()
    for case in CASES:
        golden = fetched.get(case.name)
        assert golden.manifest == store.get(case.name).manifest
        np.testing.assert_array_equal(golden.outputs["y"], store.get(case.name).outputs["y"])
    assert make(fetched, CASES, Reference()) == 0
    assert list(fetched.verify({case.name: case for case in CASES})) == []
    again = Store(tmp_path / "again", origin=origin)
    assert again.has(CASES[1]) and again.has(CASES[2])


def test_a_packed_file(packed, store, tmp_path):
    _same(PackedFile(packed[0]), store, tmp_path)
    assert is_remote(str(packed[0])) and not is_remote(str(store.root))


def test_a_packed_file_is_the_same_bytes_for_the_same_goldens(packed, tmp_path):
    other = Store(tmp_path / "elsewhere" / "other")
    make(other, reversed(CASES), Reference())
    assert pack(other, reversed(NAMES), tmp_path / "other.tar") == packed[1]
    assert hashlib.sha256((tmp_path / "other.tar").read_bytes()).hexdigest() == packed[1]
    with tarfile.open(packed[0]) as tar:
        assert tar.getnames()[0] == SUMS
        assert {(member.mtime, member.uid, member.uname) for member in tar} == {(0, 0, "")}


def test_unpacked_it_is_a_store(packed, tmp_path):
    with tarfile.open(packed[0]) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    unpacked = Store(tmp_path / "unpacked")
    assert list(unpacked.verify({case.name: case for case in CASES})) == []


@pytest.mark.parametrize("where", ["memory://release/goldens.tar", "file://{tmp}/there/goldens.tar"])
def test_a_packed_file_at_a_url(where, packed, store, tmp_path, memory):
    url = where.format(tmp=tmp_path)
    with fsspec.open(url, "wb") as file:
        file.write(packed[0].read_bytes())
    _same(open_origin(url, tmp_path / "downloads"), store, tmp_path)
    # With its hash it is downloaded once.
    open_origin(f"{url}#sha256={packed[1]}", tmp_path / "downloads")
    memory.store.clear()
    shutil.rmtree(tmp_path / "there", ignore_errors=True)
    assert len(open_origin(f"{url}#sha256={packed[1]}", tmp_path / "downloads").paths()) == 6
    with pytest.raises(BadInput, match="no such file"):
        open_origin(url, tmp_path / "downloads")


@pytest.mark.parametrize("where", ["memory://store", "file://{tmp}/there"])
def test_a_folder_at_a_url(where, store, tmp_path, memory):
    url = where.format(tmp=tmp_path)
    fs, root = fsspec.core.url_to_fs(url)
    for path in store.root.rglob("*.*"):
        place = f"{root}/{path.relative_to(store.root).as_posix()}"
        fs.makedirs(place.rpartition("/")[0], exist_ok=True)
        fs.pipe_file(place, path.read_bytes())
    _same(open_origin(url, tmp_path / "downloads"), store, tmp_path)


def test_what_the_origin_lacks_or_has_of_another_recipe_is_made(packed, tmp_path):
    changed = [
        *CASES[:2],
        Case(NAMES[2], "silu", {"x": Recipe((7, 4))}),
        Case("silu/f32/new", "silu", {"x": Recipe((9, 4))}),
    ]
    fetched = Store(tmp_path / "fetched", origin=PackedFile(packed[0]))
    assert make(fetched, changed, Reference()) == 2
    assert fetched.get(NAMES[2]).outputs["y"].shape == (7, 4)


def test_another_hash_is_refused(packed, tmp_path):
    with pytest.raises(BadInput, match="it was replaced, or damaged on its way"):
        open_origin(f"{packed[0]}#sha256={'0' * 64}", tmp_path)


def test_a_damaged_byte_is_found_wherever_it_is(packed, store, tmp_path):
    whole = packed[0].read_bytes()
    for name in NAMES:
        for file in (store.manifest_path(name), store.blob_path(store.manifest(name).blob)):
            at = whole.index(file.read_bytes()) + file.stat().st_size // 2
            (tmp_path / "bad.tar").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with pytest.raises(BadInput, match="do not have the SHA-256"):
                Store(tmp_path / f"bad{at}", origin=PackedFile(tmp_path / "bad.tar")).get(name)


def test_a_folder_that_serves_another_blob_is_refused(store, tmp_path, memory):
    for path in store.root.rglob("*.*"):
        memory.pipe_file(f"/s/{path.relative_to(store.root).as_posix()}", path.read_bytes())
    blob = store.blob_path(store.manifest(NAMES[0]).blob)
    memory.pipe_file(f"/s/blobs/{blob.name}", blob.read_bytes()[:-1] + b"x")
    fetched = Store(tmp_path / "fetched", origin=open_origin("memory://s", tmp_path))
    with pytest.raises(BadInput, match="do not hash to its name"):
        fetched.get(NAMES[0])
    assert not fetched.blob_path(store.manifest(NAMES[0]).blob).exists()


@pytest.mark.parametrize("content", [b"", b"not a tar" * 100, b"\0" * 10240])
def test_what_is_no_packed_file_is_one_line(content, tmp_path):
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(BadInput) as raised:
        open_origin(str(tmp_path / "x.tar"), tmp_path)
    assert "x.tar: not goldens packed by `refsd golden pack`" in str(raised.value)
    with tarfile.open(tmp_path / "y.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("readme"), io.BytesIO())
    with pytest.raises(BadInput, match="not goldens packed"):
        open_origin(str(tmp_path / "y.tar"), tmp_path)


def test_a_missing_package_says_what_to_install(tmp_path, monkeypatch):
    with pytest.raises(BadInput, match=r"Protocol not known: nosuch"):
        open_origin("nosuch://x", tmp_path)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(BadInput, match=r"memory://x: fsspec reads URLs: in refsd's clone: uv sync --extra remote"):
        open_origin("memory://x", tmp_path)
