"""The store: whole or not there, and never trusted blindly."""

import hashlib
import os
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

from refsd.cases import CASES
from refsd.engines.reference import Reference
from refsd.golden.case import Case, ModelRecipe
from refsd.golden.recipe import Recipe
from refsd.golden.store import Store, make, recompute
from refsd.numerics.errors import BadInput

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
    old = _blob(store, changed.name)
    assert make(store, [changed], Reference()) == 1
    assert store.has(changed) and not old.exists()
    assert _kinds(store, {**_BY_NAME, changed.name: changed}) == []


def test_a_replaced_answer_stays_where_another_case_has_it(store):
    twin = Case("silu/f32/twin", "silu", {"x": Recipe((1, 4))})

    class One(Reference):
        def run(self, case, inputs):
            return {"y": np.ones(3)}

    other = msgspec.structs.replace(_CASES[0], inputs={"x": Recipe((1, 4), seed=1)})
    make(store, [other, twin], One())
    assert _blob(store, twin.name) == _blob(store, other.name)
    make(store, _CASES, Reference())
    assert _kinds(store, {**_BY_NAME, twin.name: twin}) == []


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
    what = "model/x: the recipes of its weights have changed since its golden was made"
    assert problem == ("changed", what, "model/x")
    assert make(after, [case], _Answer()) == 1 and not before.has(case)


@pytest.mark.jitted
def test_every_case_of_the_corpus_is_what_its_manifest_says(tmp_path, monkeypatch):
    """Make, verify, make again; with a stand-in for the answers, for what is compared are the questions."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    place = Store(tmp_path, lambda model: model.family)
    assert make(place, CASES.values(), _Answer()) == len(CASES)
    assert list(place.verify(CASES)) == []
    assert make(place, CASES.values(), _Answer()) == 0


def test_no_value_of_a_case_is_lost_in_its_manifest():
    """JSON has no inf and no NaN: msgspec writes null for them, and a change from one to the other would pass."""
    for case in CASES.values():
        read = msgspec.json.decode(msgspec.json.encode(case), type=Case)
        assert _lists(msgspec.to_builtins(read)) == _lists(msgspec.to_builtins(case)), case.name


def _lists(value):
    if isinstance(value, dict):
        return {key: _lists(of) for key, of in value.items()}
    return [_lists(of) for of in value] if isinstance(value, (list, tuple)) else value


@pytest.mark.parametrize(
    "written",
    [
        Recipe((2, 4), offset=999),
        Recipe((2, 4), exponent=-15, offset=999.0, seed=0),
        Recipe([2, 4], offset=999.0),  # type: ignore[arg-type]
    ],
)
def test_a_case_is_compared_by_its_values(tmp_path, written):
    place = Store(tmp_path)
    one, other = (
        Case("silu/x", "silu", {"x": recipe}, {"a": [1, 2]}) for recipe in (written, Recipe((2, 4), offset=999.0))
    )
    assert make(place, [one], _Answer()) == 1
    assert make(place, [one], _Answer()) == make(place, [other], _Answer()) == 0
    assert list(place.verify({other.name: msgspec.structs.replace(other, params={"a": (1, 2)})})) == []
    for changed in ({"a": [1, 3]}, {"a": [1]}, {"a": [1, 2], "b": None}, {}):
        assert not place.has(msgspec.structs.replace(other, params=changed))
    assert not place.has(msgspec.structs.replace(other, inputs={"x": Recipe((2, 4), offset=999.5)}))


def _rewrite(store, name, **fields):
    path = store.manifest_path(name)
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | fields))


@pytest.mark.parametrize("inputs", [{"x": "0" * 64}, {}, {"x": None, "y": "0" * 64}])
def test_an_answer_to_other_inputs_is_made_again(store, inputs):
    """As when the code that makes numbers from names changes and no recipe does."""
    name = "silu/f32/x3"
    right = store.manifest(name).inputs
    _rewrite(store, name, inputs={key: value or right[key] for key, value in inputs.items()})
    (problem,) = store.verify(_BY_NAME)
    assert problem.kind == "changed" and problem.case == name and "bytes of its inputs" in problem.what
    assert make(store, _CASES, Reference()) == 1
    assert _kinds(store) == [] and store.manifest(name).inputs == right


def test_an_answer_under_other_numerics_is_no_golden(store):
    name = "silu/f32/x3"
    _rewrite(store, name, numerics="torch-bf16")
    with pytest.raises(BadInput, match="'torch-bf16', expected float64"):
        store.get(name)
    assert _kinds(store) == ["corrupt", "extra"]
    assert make(store, _CASES, Reference()) == 1 and _kinds(store) == []

    class Quick(Reference):
        def run(self, case, inputs):
            return {"y": super().run(case, inputs)["y"].astype(np.float32)}

    store.manifest_path(name).unlink()
    make(store, _CASES, Quick())
    with pytest.raises(BadInput, match="'float32', expected float64"):
        store.get(name)


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
    assert recompute(golden, golden.manifest.case, Reference()) is None
    assert recompute(golden, golden.manifest.case, Other()).kind == "drift"


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
        ("numerics", "float32"),
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
from refsd.engines.reference import Reference
from refsd import cases
from refsd.golden import store
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
    assert all(recompute(place.get(name), wanted[name], Reference()) is None for name in wanted)


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match=r"goldens/blobs/\w+\.safetensors: cannot write the file: No space left"):
        make(Store(tmp_path / "goldens"), _CASES[:1], Reference())
