"""Tensors of failing answers: kept whole, within limits, and never through a link."""

import os

import ml_dtypes
import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file
from sample_reports import fails

from refsd.golden.case import Case
from refsd.golden.conform import Answered
from refsd.golden.examination import Examination
from refsd.golden.judge import Standard, Trace
from refsd.golden.output_file import replaced_folder
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32
from refsd.reports.kept import INDEX, Keeper, keeper


def _answered(found=None, taps=None, n=8):
    y = np.arange(n, dtype=np.float64)
    standard = Standard(Case("a/1", "silu", {}), {}, {"y": y}, {"y": y.astype(np.float32)}, FLOAT32)
    found = {"y": y.astype(np.float32) + 1} if found is None else found
    return Answered("ggml", standard, found, taps or {}, Examination(Trace(), []))


def test_an_answer_is_kept_beside_the_truth_and_the_honest_run(tmp_path):
    with keeper(tmp_path / "k", "k") as kept:
        result = kept.keep(fails("a/1"), _answered(taps={"layers.0": np.ones(3, np.float16)}))
    folder = tmp_path / result.kept
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.safetensors" for name in ("found", "truth", "honest")
    }
    found = load_file(folder / "found.safetensors")
    assert found["y"].tolist() == [*range(1, 9)] and found["layers.0"].dtype == np.float16
    truth = load_file(folder / "truth.safetensors")
    assert list(truth) == ["y"] and truth["y"].dtype == np.float64
    (entry,) = msgspec.json.decode((tmp_path / "k" / INDEX).read_bytes())
    assert entry["engine"] == "ggml" and entry["left_out"] == [] and kept.notes == []


def test_what_is_too_large_is_left_out_and_said(tmp_path):
    kept = Keeper(tmp_path, "k", answer=300, total=300)
    small = _answered(taps={"large": np.zeros(100), "small": np.zeros(2)})
    kept.keep(fails("a/1"), small)
    assert kept.keep(fails("a/2"), _answered()).kept
    assert kept.keep(fails("a/3"), _answered()).kept == ""
    kept.close()
    first, second, third = msgspec.json.decode((tmp_path / INDEX).read_bytes())
    assert (first["left_out"], second["left_out"], third["left_out"]) == (["large"], [], ["y"])
    assert kept.notes == ["2 tensors of 2 failing answers not kept: at most 0 MiB an answer, 0 MiB in all"]
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors")) < 3000


def test_an_answer_has_its_share_of_the_room(tmp_path):
    kept = Keeper(tmp_path, "k", answer=300, total=10**6)
    result = kept.keep(fails("a/1"), _answered(taps={"large": np.zeros(100), "small": np.zeros(2)}))
    found = load_file(tmp_path / result.kept.removeprefix("k/") / "found.safetensors")
    assert found.keys() == {"y", "small"}


@pytest.mark.parametrize(
    "name", ["../../out", "/etc/x", "a/../../b", "..", "", "a\0b", "\ud800", "x" * 5000, "a\nb"]
)
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    odd = {name: np.zeros(2), "half": np.zeros(2, ml_dtypes.bfloat16), "scalar": np.zeros((), np.int8)}
    with keeper(tmp_path / "k", "k") as kept:
        result = kept.keep(fails(name, engine=name), _answered(odd))
    assert len(list((tmp_path / "k").rglob("found.safetensors"))) == 1
    assert (tmp_path / result.kept).resolve().is_relative_to(tmp_path / "k")
    assert [path.name for path in tmp_path.iterdir()] == ["k"]


def test_names_that_differ_have_folders_that_differ(tmp_path):
    kept = Keeper(tmp_path, "k")
    places = {kept.keep(fails(name), _answered()).kept for name in ("a/b", "a_b", "a b", "a.b", "a/b/", "A/b")}
    assert len(places) == 6


def test_a_new_run_replaces_what_the_last_one_kept(tmp_path):
    for case in ("a/1", "a/2"):
        with keeper(tmp_path / "k", "k") as kept:
            result = kept.keep(fails(case), _answered())
    assert len(list((tmp_path / "k" / "ggml").iterdir())) == 1 and (tmp_path / result.kept).is_dir()
    with pytest.raises(KeyError), keeper(tmp_path / "k", "k"):
        raise KeyError
    assert (tmp_path / result.kept).is_dir() and [path.name for path in tmp_path.iterdir()] == ["k"]


def test_where_nothing_failed_nothing_is_left(tmp_path):
    with keeper(tmp_path / "k", "k") as kept:
        kept.keep(fails("a/1"), _answered())
    with keeper(tmp_path / "k", "k"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_links_and_folders_of_others_stay_as_they_are(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("x")
    (tmp_path / "link").symlink_to(other)
    (tmp_path / "file").write_text("x")
    for name, says in {"other": "not written by refsd", "link": "a link", "file": "no folder"}.items():
        with pytest.raises(BadInput, match=says), keeper(tmp_path / name, "k"):
            pass
    (other / INDEX).symlink_to(other / "mine.txt")
    with pytest.raises(BadInput, match="not written by refsd"), keeper(other, "k"):
        pass
    assert (other / "mine.txt").read_text() == "x"


def test_a_link_within_an_old_folder_is_removed_and_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    with keeper(tmp_path / "k", "k") as kept:
        kept.keep(fails("a/1", engine="torch"), _answered())
    (tmp_path / "k" / "ggml").symlink_to(outside)
    with keeper(tmp_path / "k", "k") as kept:
        kept.keep(fails("a/1"), _answered())
    assert [path.name for path in outside.iterdir()] == ["file"] and not (tmp_path / "k" / "ggml").is_symlink()


def test_a_link_that_comes_while_the_block_runs_is_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    with pytest.raises(BadInput, match="a link"), replaced_folder(tmp_path / "k", INDEX) as part:
        (part / INDEX).write_text("")
        os.symlink(outside, tmp_path / "k")
    assert list(outside.iterdir()) == []


def test_a_full_disk_leaves_the_report_whole(tmp_path, monkeypatch):
    kept = Keeper(tmp_path, "k")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    assert kept.keep(fails("a/1"), _answered()).kept == ""
    assert kept.notes == ["the tensors of failing answers are not all kept: No space left on device"]
