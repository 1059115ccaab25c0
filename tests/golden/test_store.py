"""The store: whole or not there, and never trusted blindly."""

import hashlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refsd.engine import Reference
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.cases import CASES
from refsd.golden.errors import BadInput
from refsd.golden.recipe import Recipe
from refsd.golden.store import Store, make, recompute

_CASES = [Case(f"silu/f32/x{n}", "silu", {"x": Recipe((n, 4))}) for n in range(1, 6)]
_BY_NAME = {case.name: case for case in _CASES}


@pytest.fixture
def store(tmp_path):
    place = Store(tmp_path / "goldens")
    make(place, _CASES, Reference())
    return place


def _kinds(store, cases=_BY_NAME):
    return [problem.kind for problem in store.verify(cases)]


def _blob(store, name) -> Path:
    return store.blob_path(store.manifest(name).blob)


def test_what_is_put_comes_back(store):
    golden = store.get("silu/f32/x3")
    expected = Reference().run(_CASES[2], _CASES[2].realize())["y"]
    np.testing.assert_array_equal(golden.outputs["y"], expected)
    assert golden.outputs["y"].dtype == np.float64
    assert golden.manifest.case == _CASES[2]
    assert golden.manifest.generator.keys() >= {"refsd", "numpy", "numba", "blas"}
    assert _kinds(store) == []


def test_making_again_leaves_everything_alone(store):
    before = {p: p.stat().st_mtime_ns for p in store.root.rglob("*") if p.is_file()}
    assert make(store, _CASES, Reference()) == 0
    assert before == {p: p.stat().st_mtime_ns for p in store.root.rglob("*") if p.is_file()}


def test_two_stores_are_byte_for_byte_the_same(store, tmp_path):
    other = Store(tmp_path / "other")
    make(other, reversed(_CASES), Reference())
    files = [p.relative_to(store.root) for p in store.root.rglob("*") if p.is_file()]
    assert all((store.root / p).read_bytes() == (other.root / p).read_bytes() for p in files)


def test_a_changed_case_is_made_again(store):
    changed = msgspec.structs.replace(_CASES[0], inputs={"x": Recipe((1, 4), seed=1)})
    assert not store.has(changed)
    assert _kinds(store, {**_BY_NAME, changed.name: changed}) == ["changed"]
    assert make(store, [changed], Reference()) == 1
    assert store.has(changed)


class _Answer:
    version = "0"

    def run(self, case, inputs):
        return {"out": np.ones(3)}


def test_an_answer_of_other_weights_is_made_again(tmp_path):
    case = Case("model/x", "model/unet", {}, model=ModelRecipe("sd15", tiny=True))
    before, after = (Store(tmp_path, lambda model, seed=seed: f"{model.family} {seed}") for seed in (1, 2))
    assert make(before, [case], _Answer()) == 1 and make(before, [case], _Answer()) == 0
    assert before.manifest("model/x").weights == "sd15 1"
    (problem,) = after.verify({case.name: case})
    assert problem == ("changed", "model/x: the recipes of its weights have changed since its golden was made")
    assert make(after, [case], _Answer()) == 1 and not before.has(case)


def test_a_flipped_bit_is_found_and_mended(store):
    blob = _blob(store, "silu/f32/x2")
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    assert _kinds(store) == ["corrupt", "extra"]
    with pytest.raises(BadInput, match="do not hash to its name"):
        store.get("silu/f32/x2")
    assert make(store, _CASES, Reference()) == 1
    assert _kinds(store) == []


def test_missing_and_left_over_files_are_named(store):
    _blob(store, "silu/f32/x1").unlink()
    (store.root / "blobs" / "stray").write_bytes(b"x")
    store.manifest_path("silu/f32/x5").unlink()
    assert sorted(_kinds(store)) == ["corrupt", "extra", "extra", "missing"]


def test_an_answer_that_drifts_is_found(store):
    class Other(Reference):
        def run(self, case, inputs):
            return {"y": super().run(case, inputs)["y"] * (1 + 1e-12)}

    golden = store.get("silu/f32/x4")
    assert recompute(golden, Reference()) is None
    assert recompute(golden, Other()).kind == "drift"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "a//b", "", "a/.", ".hidden", "a\\b", "a\0b"])
def test_a_name_cannot_lead_out(store, name):
    with pytest.raises(BadInput):
        store.manifest_path(name)


_HOSTILE = [
    b"",
    b"{",
    b"[" * 100_000,
    b"\xff\xfe",
    b"null",
    b'{"format": 1}',
    b'{"format": 1e999}',
]


@pytest.mark.parametrize("text", _HOSTILE, ids=range(len(_HOSTILE)))
def test_a_hostile_manifest_is_one_line(store, text):
    store.manifest_path("silu/f32/x1").write_bytes(text)
    with pytest.raises(BadInput) as error:
        store.manifest("silu/f32/x1")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("blob", "../../../etc/passwd"),
        ("blob", "A" * 64),
        ("format", 2),
        ("bytes", 2**60),
        ("outputs", {}),
        ("blob", "0" * 64),
    ],
)
def test_a_forged_manifest_is_refused(store, field, value):
    path = store.manifest_path("silu/f32/x1")
    content = msgspec.json.decode(path.read_bytes())
    content[field] = value
    path.write_bytes(msgspec.json.encode(content))
    with pytest.raises(BadInput):
        store.get("silu/f32/x1")
    assert not store.has(_CASES[0])


def test_another_cases_manifest_is_refused(store):
    store.manifest_path("silu/f32/x1").write_bytes(store.manifest_path("silu/f32/x2").read_bytes())
    with pytest.raises(BadInput, match="manifest of 'silu/f32/x2'"):
        store.get("silu/f32/x1")


@given(data=st.data())
def test_any_damage_to_a_manifest_is_one_error(data):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        place = Store(Path(folder))
        make(place, _CASES[:1], Reference())
        path = place.manifest_path(_CASES[0].name)
        text = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(text)
        try:
            golden = place.get(_CASES[0].name)
        except BadInput as error:
            assert "\n" not in str(error)
        else:
            assert golden.outputs.keys() == {"y"}


def test_a_file_is_no_store(tmp_path):
    (tmp_path / "f").write_text("x")
    with pytest.raises(BadInput, match="not a folder"):
        Store(tmp_path / "f")


_SLOWLY = """
import sys, time
from pathlib import Path
from refsd.engine import Reference
from refsd.golden import cases, store
place = store.Store(Path(sys.argv[1]))
chosen = cases.select("upsample_nearest/*") + cases.select("*norm/*")
store.make(place, chosen, Reference(), lambda case, new: new and print(case.name, flush=True))
print("done", flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_killed_at_any_moment_then_again_then_whole(tmp_path):
    root = tmp_path / "goldens"
    wanted = {
        n: c for n, c in CASES.items() if n.startswith("upsample_nearest/") or n.partition("/")[0].endswith("norm")
    }
    moments = random.Random(5)
    killed = 0
    for _ in range(4):
        run = subprocess.Popen([sys.executable, "-P", "-c", _SLOWLY, str(root)], stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None
        for _ in range(moments.randint(1, 4)):
            run.stdout.readline()
        time.sleep(moments.uniform(0, 0.01))
        run.kill()
        killed += "done" not in run.communicate()[0]
        # What stands under a final name is whole at any moment.
        place = Store(root)
        for name in place.names():
            place.get(name)
        for blob in (root / "blobs").iterdir():
            assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.stem
    assert killed, "no run was killed in the middle"
    make(place, wanted.values(), Reference())
    assert list(place.verify(wanted)) == []
    assert all(recompute(place.get(name), Reference()) is None for name in wanted)
