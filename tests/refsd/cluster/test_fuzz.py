"""A find that a worker reduces is written as it will lie where refsd was run."""

from pathlib import Path
from types import SimpleNamespace

from refsd.cluster import fuzz


def test_a_find_is_named_by_the_folder_that_it_will_have(monkeypatch, tmp_path):
    shrunk, written = SimpleNamespace(case=SimpleNamespace(op="model/unet")), []

    def write(place, shrunk, engine, argument, model_files, final):
        place.mkdir()
        (place / "case.json").write_bytes(b"{}")
        written.append(final)

    fuzzer = SimpleNamespace(reduce=lambda new: (finds[0], shrunk), engine="engine")
    monkeypatch.setattr(fuzz, "_fuzzer", lambda *_: fuzzer)
    monkeypatch.setattr(fuzz.folder, "write", write)
    spread = SimpleNamespace(run=lambda work, jobs, crashed: [work(*job.arguments) for job in jobs])
    finds = [fuzz.Find("case", "layout", op, "kind", "title", [], "reason", {}, {}) for op in ("silu", "gelu")]
    tally = SimpleNamespace(finds=finds)
    engine = fuzz.RemoteFuzzer("engine", 1.0, "engine", "1", [], {})
    monkeypatch.chdir(tmp_path)
    kept = []

    def keep(reduced, number):
        kept.append((reduced.files, number))
        return f"kept {number}"

    reduced = [*fuzz.reduce_all(spread, engine, tally, ["a", "b"], keep, tmp_path / "found")]  # type: ignore
    assert [find.folder for find in reduced] == ["kept 0", "kept 1"]
    assert written == [Path("found/01-model-unet"), Path("found/02-model-unet")]
    assert kept == [({"case.json": b"{}"}, 0), ({"case.json": b"{}"}, 1)]
