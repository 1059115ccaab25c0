"""Submissions: honest ones are accepted, conforming or not; tampered, damaged and hostile ones refused."""

import hashlib
import io
import json
import platform
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import safetensors.numpy
from typer.testing import CliRunner

from refsd.cases import CASES
from refsd.cli import app
from refsd.corpus import versions
from refsd.engines.reference import Reference
from refsd.golden.conform import Runner, run
from refsd.golden.metrics import Metrics
from refsd.golden.report import Report
from refsd.golden.store import Store, make
from refsd.golden.verdict import judge_output
from refsd.judges import judges
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import TORCH_F32
from refsd.submissions import packing
from refsd.submissions.collect import Collector
from refsd.submissions.form import EVIDENCE, MEMBERS, OUTPUTS, REPORT, SKETCHES, SUBMISSION
from refsd.submissions.packing import zipped
from refsd.submissions.private import scrubber

# Sketched, sketched, whole.
BIG, NORM = "silu/f32/bend-x33x77", "layer_norm/f32/plain-x2x77x64"
SMALL = next(name for name in CASES if name.startswith("stage/sigmas/"))
NAMES = (BIG, NORM, SMALL)


class Engine(Reference):
    """torch's arithmetic in a library at a path of its user; with a fault, if one is given."""

    name, version = "home-made", "1.2 (/home/somebody/src/lib.so)"

    def __init__(self, fault: Callable[[str, np.ndarray], np.ndarray] = lambda case, y: y):
        super().__init__(TORCH_F32)
        self._fault = fault

    def run(self, case, inputs):
        return {name: self._fault(case.name, y) for name, y in super().run(case, inputs).items()}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    place = Store(tmp_path_factory.mktemp("goldens"))
    make(place, [CASES[name] for name in NAMES], Reference())
    return place


def _submitted(path: Path, store: Store, engine: Engine, profile: str = "") -> Path:
    kinds, engines = judges(), [engine]
    collector = Collector(kinds, engines)
    runner = Runner(kinds, lambda case: store.get(case.name).outputs, measured=collector.add, explains=False)
    results = run(runner, engines, [CASES[name] for name in NAMES])
    report = Report("0.1.0", {engine.name: engine.version}, [], results, date="2026-11-23", profile=profile)
    report.devices = {engine.name: "a processor"}
    packing.pack(path, report, collector, [], "measured at home", {engine.name: "none"})
    return path


@pytest.fixture(scope="module")
def honest(tmp_path_factory, store) -> Path:
    return _submitted(tmp_path_factory.mktemp("honest") / "honest.zip", store, Engine())


@pytest.fixture(scope="module")
def failing(tmp_path_factory, store) -> Path:
    engine = Engine(lambda case, y: y * np.float32(1.01) if case == BIG else y)
    return _submitted(tmp_path_factory.mktemp("failing") / "failing.zip", store, engine)


def _verify(path: Path, store: Store, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["verify-submission", str(path), "--golden", str(store.root), *options])
    if isinstance(done.exception, BadInput):
        return 2, f"{done.output}{done.exception}"
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _signed(path: Path, members: dict[str, bytes]) -> Path:
    """Write members with hashes that fit, as one who means to deceive would."""
    said = json.loads(members[SUBMISSION])
    said["sha256"] = {
        name: hashlib.sha256(data).hexdigest() for name, data in members.items() if name != SUBMISSION
    }
    path.write_bytes(zipped({**members, SUBMISSION: json.dumps(said).encode()}))
    return path


def test_an_honest_submission_is_accepted(honest, store):
    code, said = _verify(honest, store)
    assert (code, said.split(": ", 1)[1].strip()) == (0, "accepted: home-made 1.2 (lib.so): conforms")
    told = json.loads(_verify(honest, store, "--json")[1].splitlines()[-1])
    assert told["accepted"] and told["conforms"] and told["devices"] == {"home-made": "a processor"}


def test_a_failing_engine_is_accepted_as_one_that_does_not_conform(failing, store):
    code, said = _verify(failing, store)
    assert code == 1 and "accepted: home-made" in said and "does not conform: 1 case not conforming" in said


def test_the_same_run_gives_the_same_bytes_and_names_nobody(tmp_path, honest, store):
    again = _submitted(tmp_path / "again.zip", store, Engine())
    assert again.read_bytes() == honest.read_bytes()
    for name, data in _members(honest).items():
        assert b"/home" not in data and b"somebody" not in data and str(tmp_path).encode() not in data, name


def test_paths_and_names_are_scrubbed(monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "somebody")
    monkeypatch.setattr(platform, "node", lambda: "her-laptop.lan")
    scrub = scrubber()
    texts = {
        "ggml:/home/x/y/libggml.so": "ggml:libggml.so",
        "cannot open /opt/a b or C:\\Users\\x\\model.gguf": "cannot open /opt/a b or model.gguf",
        "somebody@her-laptop: ~/src/engine fails": "...@...: engine fails",
        "file:///srv/models/a.gguf": "a.gguf",
        "conv2d/f32/3x3 is 3/4 of https://example.org/a/b": "conv2d/f32/3x3 is 3/4 of https://example.org/a/b",
    }
    texts["cannot open /opt/a b or C:\\Users\\x\\model.gguf"] = "cannot open a b or model.gguf"
    assert {text: scrub(text) for text in texts} == texts
    assert scrub({"a": ["/x/y/z", 1]}) == {"a": ["z", 1]}


def _edit(member: str, change: Callable[[Any], None]):
    def edited(members: dict[str, bytes]) -> None:
        said = json.loads(members[member])
        change(said)
        members[member] = json.dumps(said).encode()

    return edited


def _of(said, case: str):
    said = said["results"] if isinstance(said, dict) else said
    return next(one for one in said if one["case"] == case)


def _result(case: str, **fields):
    return _edit(REPORT, lambda said: _of(said, case).update(fields))


def _said(**fields):
    return _edit(SUBMISSION, lambda said: said.update(fields))


def _report(**fields):
    return _edit(REPORT, lambda said: said.update(fields))


def _renamed(said) -> None:
    for r in said["results"]:
        r["numerics"] = "x"


def _further(m: dict) -> None:
    m["truth"] += 1
    m["found_value"] += 1


def _metrics(case: str, change: Callable[[dict], None]):
    return _edit(EVIDENCE, lambda said: change(_of(said, case)["outputs"][0]))


def _errors(case: str, whose: str, **factors: float):
    def change(m: dict) -> None:
        for name, factor in factors.items():
            m[whose][name] *= factor

    return _metrics(case, change)


def _smaller(case: str, factor: float):
    """All of the engine's errors smaller, with everything that depends on them."""

    def change(m: dict) -> None:
        for name in ("worst", "rms", "bias", "gain", "channel", "tile"):
            m["engine"][name] *= factor
        m["error"] *= factor
        m["found_value"] = m["truth"] + m["error"]
        m["relative_l2"] *= factor

    return _metrics(case, change)


def _passing(members: dict[str, bytes]) -> None:
    """The failing engine's errors a million times smaller, and its result made to pass by them."""
    _smaller(BIG, 1e-6)(members)
    m = msgspec.convert(_of(json.loads(members[EVIDENCE]), BIG)["outputs"][0], Metrics)
    given = judge_output(m)
    assert given.passed
    fields = {"status": "pass", "margin": given.margin, "criterion": given.criterion, "reason": "", "place": ""}
    _result(BIG, **fields)(members)


def _both(*changes):
    def all_of(members):
        for change in changes:
            change(members)

    return all_of


def _tensor(member: str, change: Callable[[dict[str, np.ndarray]], None]):
    def edited(members: dict[str, bytes]) -> None:
        tensors = safetensors.numpy.load(members[member])
        change(tensors)
        members[member] = safetensors.numpy.save(tensors)

    return edited


def _moved(tensors):
    name = next(iter(tensors))
    tensors[name] = tensors[name] * np.float32(1.001)


def _text(member: str, old: bytes, new: bytes):
    def edited(members):
        assert old in members[member]
        members[member] = members[member].replace(old, new, 1)

    return edited


def _numerics(**fields):
    return _edit(SUBMISSION, lambda said: said["numerics"][0].update(fields))


def _drop(case: str):
    def dropped(said):
        said["results"] = [r for r in said["results"] if r["case"] != case]

    return _both(_edit(REPORT, dropped), _edit(EVIDENCE, lambda said: said.remove(_of(said, case))))


# What was changed -> by whom, and the words in which it is refused. Hashes are made to fit.
TAMPERED: dict[str, tuple[Callable[[dict[str, bytes]], None], str]] = {
    "a fail made a pass": (_result(BIG, status="pass", causes=[]), "the verdict is pass, the metrics give fail"),
    "a pass made a fail": (_result(NORM, status="fail"), "the verdict is fail, the metrics give pass"),
    "a waiver that is none": (_result(BIG, status="waived"), "no waiver in the submission covers it"),
    "a fail made a refusal": (_result(BIG, status="refused"), "the verdict is refused, the metrics give fail"),
    "an edited margin": (_result(NORM, margin=0.01), "the metrics give 0."),
    "metrics and verdict edited alike": (_passing, "the sketch gives"),
    "an rms beyond the worst element": (_errors(NORM, "engine", rms=1e3), "metrics that cannot be"),
    "a larger honest run": (_errors(NORM, "honest", worst=50, rms=50, channel=50, tile=50), "the honest run's"),
    "a larger bound": (_errors(NORM, "typical", worst=9, rms=9, channel=9, tile=9), "the bound's rms"),
    "outputs edited": (_tensor(OUTPUTS, _moved), "the outputs in the file give"),
    "a sketch edited": (_tensor(SKETCHES, _moved), "the sketch gives"),
    "sketches left out": (_tensor(SKETCHES, dict.clear), "its sketch is missing"),
    "an output left out": (_tensor(OUTPUTS, dict.clear), "is missing in the file"),
    "metrics left out": (
        _edit(EVIDENCE, lambda said: said.remove(_of(said, NORM))),
        "pass, but nothing was measured",
    ),
    "metrics of no output": (_metrics(NORM, lambda m: m.update(output="z")), "output 'y': no metrics"),
    "numerics with no name here": (_numerics(name="fp4"), "unknown numerics 'torch-f32'"),
    "a profile that is none": (_numerics(storage="bfloat16"), "torch-f32 is described otherwise"),
    "a type that is none": (
        _both(_numerics(name="x", compute="fp4"), _edit(REPORT, _renamed)),
        "unknown numerics 'x'",
    ),
    "another corpus": (_said(corpus_sha256="0" * 64), "another corpus: 2026.11 has"),
    "another question": (_said(cases={BIG: "0" * 16}), "asks for something else here"),
    "a case that is none": (_text(REPORT, BIG.encode(), b"silu/f32/none"), "this refsd has no such case"),
    "other rules": (_said(rules={"verdicts": "0" * 16}), "judged by other rules"),
    "too few cases": (_report(profile="2026.11/sd15"), "too few cases: 0 of the 13"),
    "a profile of nobody": (_report(profile="2026.11/sd99"), "no profile 'sd99'"),
    "a result twice": (_edit(REPORT, lambda said: said["results"].append(said["results"][0])), "two results"),
    "an interrupted run": (_report(partial="3 of 9"), "the run was interrupted"),
    "another truth": (_metrics(NORM, _further), "truth at ["),
    "a number without end": (_text(EVIDENCE, b'"limit":', b'"limit":1e99999,"x":'), "evidence.json: "),
    "NaN": (_text(EVIDENCE, b'"limit":', b'"limit":NaN,"x":'), "evidence.json: "),
    "a huge number": (_metrics(NORM, lambda m: m.update(relative_l2=1e300)), "a number beyond 1e30"),
    "a number of 10000 digits": (_text(EVIDENCE, b'"groups":', b'"groups":1' + b"0" * 10_000), "evidence.json: "),
    "a nest of brackets": (_text(REPORT, b'"missing":[]', b'"missing":' + b"[" * 10**5), "report.json: "),
    "no JSON": (lambda members: members.update({REPORT: b"\x00" * 99}), "report.json: "),
    "no tensors": (lambda members: members.update({SKETCHES: b"\xff" * 99}), "not safetensors"),
    "a future format": (_said(format=2), "format 2, this refsd reads 1"),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_submission_is_refused_for_the_right_reason(what, failing, store, tmp_path):
    change, words = TAMPERED[what]
    members = _members(failing)
    change(members)
    code, said = _verify(_signed(tmp_path / "tampered.zip", members), store)
    assert code == 2 and words in said, said


def _written(tmp_path: Path, write: Callable[[zipfile.ZipFile], None]) -> Path:
    with zipfile.ZipFile(tmp_path / "hostile.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        write(archive)
    return tmp_path / "hostile.zip"


def _hostile(members: dict[str, bytes]) -> dict[str, tuple[bytes, str]]:
    def archive(*more: tuple[str, bytes], of=tuple(MEMBERS)) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as into:
            for name in of:
                into.writestr(name, members[name])
            for name, data in more:
                into.writestr(name, data)
        return file.getvalue()

    whole = zipped(members)
    edited = zipped({**members, REPORT: members[REPORT].replace(b'"fail"', b'"pass"')})
    zeros = {**members, EVIDENCE: b" " * (MEMBERS[EVIDENCE] + 1)}
    return {
        "a path out of the folder": (archive(("../../etc/cron.d/x", b"")), "it holds '../../etc/cron.d/x'"),
        "an absolute path": (archive(("/etc/passwd", b"")), "it holds '/etc/passwd'"),
        "a member more": (archive(("run.py", b"")), "it holds 'run.py'"),
        "a member less": (archive(of=(SUBMISSION, REPORT)), "it lacks sketches.safetensors"),
        "a bomb": (zipped(zeros), "unpacks to more than"),
        "cut short": (whole[: len(whole) // 2], "not a whole zip file"),
        "a flipped bit": (whole[:2000] + bytes([whole[2000] ^ 4]) + whole[2001:], ""),
        "not a zip": (b"PK\x03\x04" + b"\x00" * 99, "not a whole zip file"),
        "empty": (b"", "not a whole zip file"),
        "edited without its hash": (edited, "report.json has been changed"),
    }


def test_hostile_files_are_refused_in_one_line(failing, store, tmp_path):
    for what, (data, words) in _hostile(_members(failing)).items():
        (tmp_path / "hostile.zip").write_bytes(data)
        code, said = _verify(tmp_path / "hostile.zip", store)
        assert code == 2 and words in said and len(said.strip().splitlines()) == 1, f"{what}: {said}"
    with pytest.warns(UserWarning, match="Duplicate"):
        path = _written(tmp_path, lambda into: [into.writestr(REPORT, b"{}") for _ in range(2)])
    assert "twice" in _verify(path, store)[1]
    assert _verify(tmp_path / "none.zip", store)[0] == 2 and _verify(tmp_path, store)[0] == 2


def test_a_profile_in_a_submission_is_met_or_not(tmp_path, store, monkeypatch):
    monkeypatch.setattr(versions, "profile_names", lambda text: list(NAMES))
    path = _submitted(tmp_path / "s.zip", store, Engine(), "2026.11/core")
    assert _verify(path, store)[1].strip().endswith("conforms 2026.11/core")

    class Refusing(Engine):
        def refuses(self, case):
            return "no stages" if case.name == SMALL else None

    path = _submitted(tmp_path / "s.zip", store, Refusing(), "2026.11/core")
    code, said = _verify(path, store)
    assert code == 1 and f"does not meet 2026.11/core: 1 of 3 cases is refused: {SMALL}" in said


def test_conform_writes_a_submission(tmp_path, store, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "engine.py").write_text(_ENGINE)
    engine = f"exec:{sys.executable} {tmp_path}/engine.py"
    asked = ["--cases", BIG, "--golden", str(store.root), "--submission", "s.zip", "--statement", "mine"]
    done = CliRunner().invoke(app, ["conform", engine, *asked, "--device", "GPU 9", "--driver", "1.5"])
    assert done.exit_code == 0, done.output
    code, said = _verify(tmp_path / "s.zip", store, "--json")
    assert code == 0 and json.loads(said.splitlines()[-1])["devices"] == {"mine": "GPU 9"}
    told = json.loads(_members(tmp_path / "s.zip")[SUBMISSION])
    assert (told["statement"], told["drivers"]) == ("mine", {"mine": "1.5"})


_ENGINE = """
import json, sys
import numpy as np
from safetensors.numpy import load_file, save_file

request = json.load(sys.stdin)
if request["request"] == "describe":
    said = {"protocol": 1, "name": "mine", "version": "1", "ops": {"silu": {}}}
    open(request["output"], "w").write(json.dumps(said))
    sys.exit()
x = load_file(request["inputs"])["x"]
save_file({"y": (x / (1 + np.exp(-x))).astype(np.float32)}, request["output"])
"""
