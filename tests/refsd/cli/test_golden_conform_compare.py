"""The oracle's commands, as a user calls them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from refsd.cases import CASES
from refsd.cli import app
from refsd.golden.store import Store, make
from refsd.numerics.errors import BadInput
from refsd.numerics.processor import cores
from refsd.reports.stored import decode

_CASE = "silu/f32/wide-x2x320"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _call(*arguments: str):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=True)


def _ok(*arguments: str) -> str:
    result = _call(*arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def _bad(*arguments: str) -> str:
    result = _call(*arguments)
    assert isinstance(result.exception, BadInput)
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.mark.smoke
def test_make_list_show_verify(tmp_path):
    assert "3 of them new" in _ok("golden", "make", "--cases", "silu/*")
    assert "0 of them new" in _ok("golden", "make", "--cases", "silu/*")
    assert "3 cases, 3 of them in goldens" in _ok("golden", "list", "--cases", "silu/*")
    assert "sha256" in _ok("golden", "show", _CASE)
    assert "num_groups = 32" in _ok("golden", "show", "group_norm")
    both = _ok("golden", "show", "group_norm", "silu")
    assert "num_groups = 32" in both and "\nsilu: x * sigmoid(x)\n" in both
    assert "  sampler = euler, heun, " in _ok("golden", "show", "trajectory")
    assert "dpm++2m" in json.loads(_ok("golden", "show", "trajectory", "--json"))["params"]["sampler"]
    assert "; noisy latent, scaled as the sampler scales it\n" in _ok("golden", "show", "sd15/unet/between")
    assert "; [..., D]\n" in _ok("golden", "show", "rms_norm/f32/tiny-x33x320")
    component = _ok("golden", "show", "model/tae-decoder")
    assert "-> out   N C 8H 8W" in component and "taesd/tae-decoder/outliers" in component
    assert 'did you mean "model/tae-decoder"' in _bad("golden", "show", "model/tae-decodr")
    assert "| silu | gelu | 3 | 3 |" in _ok("golden", "show", "silu", "--mutants")
    assert "3 of 3 goldens whole, 0 problems" in _ok("golden", "verify", "--cases", "silu/*", "--recompute")
    blob = next((tmp_path / "goldens" / "blobs").iterdir())
    blob.write_bytes(blob.read_bytes()[:-1])
    broken = _call("golden", "verify", "--cases", "silu/*")
    assert broken.exit_code == 1
    assert "corrupt" in broken.stdout
    assert "1 of them new" in _ok("golden", "make", "--cases", "silu/*")


def test_a_golden_that_was_asked_for_by_name_is_nothing_extra(tmp_path):
    """`verify` without a glob looks at full-size goldens too where the store has them, and misses none."""
    from refsd.weights.model_files import open_store

    class Answer:
        version = "0"

        def run(self, case, inputs):
            return {"out": np.ones(3)}

    make(open_store(tmp_path / "goldens"), [CASES[_CASE], CASES["full/sd15/clip/long"]], Answer())
    said = json.loads(_call("golden", "verify", "--json").stdout)
    assert {problem["kind"] for problem in said["problems"]} == {"missing"} and said["whole"] == 2
    assert not [problem for problem in said["problems"] if problem["case"].startswith("full/")]


def test_a_packed_store_serves_every_command(tmp_path, monkeypatch):
    monkeypatch.setenv("REFSD_CACHE", str(tmp_path / "cache"))
    _ok("golden", "make", "--cases", "silu/*")
    packed = json.loads(_ok("golden", "pack", "-o", "g.tar", "--json"))
    assert packed["goldens"] == 3 and "exists" in _bad("golden", "pack", "-o", "g.tar")
    assert "no golden matches relu/*" in _bad("golden", "pack", "-o", "h.tar", "--cases", "relu/*")
    assert packed["sha256"] in _ok("golden", "pack", "-o", "g.tar", "--force")
    url = f"g.tar#sha256={packed['sha256']}"
    monkeypatch.setattr("refsd.engines.reference.Reference.run", None)  # nothing is computed
    assert "3 cases, 3 of them in" in _ok("golden", "list", url, "--cases", "silu/*")
    assert "sha256" in _ok("golden", "show", _CASE, "--store", url)
    assert "3 of 3 goldens whole, 0 problems" in _ok("golden", "verify", url, "--cases", "silu/*")
    np.save("y.npy", Store(tmp_path / "goldens").get(_CASE).outputs["y"].astype(np.float32))
    assert "pass" in _ok("compare", "y.npy", _CASE, "--store", url)
    assert "0 of them new" in _ok("golden", "make", url, "--cases", "silu/*")


def test_json_for_machines():
    assert json.loads(_ok("golden", "make", "--cases", "silu/*", "--json"))["new"] == 3
    assert json.loads(_ok("golden", "list", "--cases", "silu/*", "--json"))[0]["made"]
    assert json.loads(_ok("golden", "show", _CASE, "--json"))["manifest"]["numerics"] == "float64"
    assert json.loads(_ok("golden", "show", "attention", "--json"))["inputs"]["mask?"]
    assert json.loads(_ok("golden", "verify", "--cases", "silu/*", "--json"))["problems"] == []


def test_bad_usage_of_golden(tmp_path):
    assert "no such store" in _bad("golden", "verify", "none")
    assert "no case matches" in _bad("golden", "make", "--cases", "none")
    assert "no case and no operation" in _bad("golden", "show", "none")
    (tmp_path / "file").write_text("x")
    assert "not a folder" in _bad("golden", "make", "file")


@pytest.mark.smoke
def test_conform_judges_and_writes_its_reports(tmp_path):
    said = _ok("conform", "refsd", "gguf-py", "--cases", "*ant*/q4_0/*", "--json", "a.json", "--junit", "a.xml")
    assert "conforms" in said
    report = decode((tmp_path / "a.json").read_bytes())
    assert report.engines.keys() == {"refsd-float32", "gguf-py"}
    assert {r.status for r in report.results} == {"pass"}
    assert {p.name for p in (tmp_path / "refsd-report").iterdir()} == {
        *("report.html", "report.md", "conform.json", "junit.xml")
    }
    assert (tmp_path / "a.xml").read_bytes() == (tmp_path / "refsd-report" / "junit.xml").read_bytes()


def test_no_report_goes_into_the_store_that_it_is_made_from(tmp_path):
    _ok("golden", "make", "--cases", "silu/*")
    (tmp_path / "link").symlink_to("goldens")
    kept = {path: path.read_bytes() for path in (tmp_path / "goldens").rglob("*") if path.is_file()}
    manifest = Store(tmp_path / "goldens").manifest_path(_CASE)
    for flag, path in (
        ("--json", manifest),
        ("--junit", next((tmp_path / "goldens" / "blobs").iterdir())),
        ("--json", "goldens/new.json"),
        ("--report", "goldens"),
        ("--report", "link/cases"),
    ):
        said = _bad("conform", "refsd", "--cases", "silu/*", flag, path)
        assert "the store of this very run; name a file elsewhere" in said
    assert {path: path.read_bytes() for path in (tmp_path / "goldens").rglob("*") if path.is_file()} == kept
    assert "the store of this very run" in _bad("conform", "refsd", "--golden", "new", "--report", "new/report")
    assert not (tmp_path / "new").exists()


def test_an_engine_that_runs_nothing_does_not_conform():
    result = _call("conform", "gguf-py", "--cases", "silu/*")
    assert result.exit_code == 1
    assert "gguf-py ran 0 cases" in result.stdout
    assert _call("conform", "refsd", "--cases", "silu/*", "--min-cases", "4").exit_code == 1


@pytest.mark.parametrize(
    ("description", "says"),
    [
        ('"numerics": "torch-fp16", "ops": {}', "numerics 'torch-fp16' is not known (did you mean \"torch-f16\"?)"),
        ('"ops": {"lineer": {}}', "operation 'lineer' is not known (did you mean \"linear\"?)"),
    ],
)
def test_a_wrong_description_is_not_called_missing(tmp_path, description, says):
    program = tmp_path / "engine.sh"
    text = f'{{"protocol": 1, "name": "mine", "version": "1", {description}}}'
    program.write_text(f"cat > request.json; echo '{text}' > $(grep -o '/[^\"]*description.json' request.json)")
    said = _bad("conform", f"exec:sh {program}", "--cases", "silu/*")
    assert says in said and "cannot be judged" in said and "found" not in said


def test_each_glob_is_honoured(tmp_path):
    both = ("--cases", "silu/f32/wide*", "--cases", "quick_gelu/f32/wide*")
    assert "2 goldens, 2 of them new" in _ok("golden", "make", *both)
    listed = json.loads(_ok("golden", "list", *both, "--json"))
    assert [row["op"] for row in listed] == ["silu", "quick_gelu"] and all(row["made"] for row in listed)
    assert "2 of 2 goldens whole, 0 problems" in _ok("golden", "verify", *both)
    _ok("conform", "refsd", *both)
    report = decode((tmp_path / "refsd-report" / "conform.json").read_bytes())
    assert {r.op for r in report.results} == {"silu", "quick_gelu"}
    typo = _bad("conform", "refsd", "--cases", "silu/*", "--cases", "sillu/f32/wide-x2x320")
    for glob in ("con2d/*", "con2d"):
        said = _bad("conform", "refsd", "--cases", glob)
        assert f"no case matches '{glob}' (did you mean \"conv2d/*\"?)" in said
    assert "no case matches 'sillu/f32/wide-x2x320' (did you mean \"silu/f32/wide-x2x320\"?)" in typo


def test_the_first_part_of_names_suggests_each_of_them():
    said = str(_call("conform", "refsd", "--cases", "conv/*").exception)
    assert 'no case matches \'conv/*\' (did you mean "conv2d/*" or "conv2d_int8/*" or "conv3d/*"?)' in said


@pytest.mark.parametrize(
    ("glob", "meant"),
    [
        ("group_norm/tiny*", '"group_norm/f32/tiny*"'),
        ("conv2d/latent*", '"conv2d/f32/latent*" or "conv2d/f16/latent*"'),
        ("linear/nope*", '"linear/*"'),
        ("sd15/latent*", '"sd15/*"'),
    ],
)
def test_a_glob_that_lacks_the_type_is_given_it(glob, meant):
    assert f"no case matches '{glob}' (did you mean {meant}?)" in _bad("conform", "refsd", "--cases", glob)


def test_a_glob_in_the_place_of_a_store_is_refused():
    said = str(_call("golden", "list", "silu/*").exception)
    assert said == "no store of goldens 'silu/*': to list some cases, write --cases 'silu/*'"
    assert str(_call("golden", "list", "golens").exception) == "no store of goldens 'golens'"


def test_globs_in_one_option_or_in_the_place_of_a_name_are_told_where_they_belong():
    said = str(_call("conform", "refsd", "--cases", "silu/*, gelu/*").exception)
    assert said.endswith("repeat the option: --cases 'silu/*' --cases 'gelu/*'")
    said = str(_call("golden", "show", "roll/*").exception)
    assert (
        said == "'roll/*' is a glob, and one case is shown: list the cases by `refsd golden list --cases 'roll/*'`"
    )


def test_a_program_without_its_prefix_is_suggested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("engine").write_text("")
    for argument in ("./engine", "exec:engine"):
        said = str(_call("conform", argument, "--cases", _CASE).exception)
        assert '(did you mean "exec:./engine"?)' in said
    said = str(_call("conform", "exec:./engine", "--cases", _CASE, "rope/*").exception)
    assert "Each needs its flag: --cases 'rope/*'" in said


def test_the_terminal_says_why_cases_are_refused():
    said = _call("conform", "gguf-py", "refsd", "--cases", "silu/*").stdout
    assert "gguf-py does not take 3 of 3 cases: only dequantizes" in said
    assert "refsd-float32 does not" not in said


def test_a_verdict_by_too_few_cases_gives_that_reason():
    said = _call("conform", "refsd", "--cases", _CASE, "--min-cases", "99")
    few = "refsd ran 1 case, expected at least 99"
    line = (
        f"does not conform: too few answers: {few}. Those given conform: 1 answer of 1 engine, 0 not conforming\n"
    )
    assert said.exit_code == 1 and said.stdout.startswith(line)


def test_a_declared_operation_that_no_case_can_be_asked_of_fails_the_run(tmp_path):
    program = tmp_path / "engine.py"
    text = {"protocol": 1, "name": "mine", "version": "1", "ops": {"roll": {}, "silu": {"types": ["bf16"]}}}
    program.write_text(
        "import json, sys\nimport numpy as np\nfrom safetensors.numpy import load_file, save_file\n"
        "r = json.load(sys.stdin)\n"
        f"if r['request'] == 'describe': open(r['output'], 'w').write({json.dumps(text)!r}); sys.exit()\n"
        "x = load_file(r['inputs'])['x']\n"
        "save_file({'y': np.roll(x, (r['params']['down'], r['params']['right']), (2, 3))}, r['output'])\n"
    )
    engine = f"exec:{sys.executable} {program}"
    line = "mine: silu is declared, but none of its 3 cases was judged: takes no f32"
    both = ("--cases", "silu/*", "--cases", "roll/*")
    said = _call("conform", engine, *both)
    assert said.exit_code == 1 and f"too few answers: {line}. Those given conform" in said.stdout.splitlines()[0]
    for narrower in (("--min-cases", "0", *both), ("--cases", "silu/f32/bend*", "--cases", "roll/*")):
        said = _call("conform", engine, *narrower)
        assert said.exit_code == 0 and "mine: silu is declared, but" in said.stdout
    said = _call("conform", engine, "--cases", "roll/*", "--cases", "tanh/*")
    assert said.exit_code == 0 and "mine: tanh is asked for, but" in said.stdout


def test_one_is_singular():
    assert "conforms: 1 answer of 1 engine, 0 not conforming" in _ok("conform", "refsd", "--cases", _CASE)
    assert "1 golden, 0 of them new" in _ok("golden", "make", "--cases", _CASE)
    assert "1 case, 1 of them in goldens" in _ok("golden", "list", "--cases", _CASE)
    assert "1 of 1 golden whole, 0 problems" in _ok("golden", "verify", "--cases", _CASE)


def test_how_many_cases_are_listed():
    *listed, _ = _ok("golden", "list").splitlines()
    said = _bad("conform", "refsd", "--cases", "none")
    assert f"`refsd golden list` shows {len(listed)} cases, with --cases 'full/*', --cases 'lone/*'" in said


def test_an_engine_that_two_arguments_name_is_judged_once():
    """As "torch" and "torch-f16": the second is one of those that the first gives."""
    said = _ok("conform", "onnxruntime", "onnxruntime", "--cases", "silu/f32/bend-x33x77")
    assert "1 answer of 3 engines" in said  # onnxruntime-f32 and -qdq take none


def test_bad_usage_of_conform(tmp_path):
    assert "unknown engine" in _bad("conform", "tensorflow", "--cases", "silu/*")
    assert "no such numerics profile" in _bad("conform", "refsd:f8", "--cases", "silu/*")
    assert "no case matches" in _bad("conform", "refsd", "--cases", "none")
    assert "cannot be judged: /nowhere/libggml.so: no such file" in _bad("conform", "ggml:/nowhere/libggml.so")
    assert "two of the engines are called 'refsd-float32' (refsd, refsd:float32)" in _bad(
        "conform", "refsd", "refsd:float32"
    )
    (tmp_path / "w.toml").write_text("nonsense")
    assert "waivers" in _bad("conform", "refsd", "--cases", "silu/*", "--waivers", "w.toml")


def _answer() -> np.ndarray:
    _ok("golden", "make", "--cases", _CASE)
    return Store("goldens").get(_CASE).outputs["y"]


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors", "folder"])
def test_compare_a_dump_with_a_case(tmp_path, kind):
    y = _answer().astype(np.float32)
    path = tmp_path / f"y.{kind}"
    if kind == "npz":
        np.savez(path, y=y)
    elif kind == "safetensors":
        save_file({"y": y}, path)
    elif kind == "folder":
        path.mkdir()
        np.save(path / "whatever.npy", y)
    else:
        np.save(path, y)
    assert "pass" in _ok("compare", path, _CASE)
    half = _call("compare", path, _CASE, "--numerics", "torch-f16")
    assert half.exit_code == 0


def test_compare_says_where_it_is_wrong(tmp_path):
    y = _answer().astype(np.float32)
    y[1, 7] += 1
    np.save(tmp_path / "y.npy", y)
    result = _call("compare", "y.npy", _CASE)
    assert result.exit_code == 1
    assert "[1, 7]" in result.stdout
    result = _call("compare", "y.npy", _CASE, "--json")
    assert result.exit_code == 1
    assert msgspec.json.decode(result.stdout)["verdict"]["passed"] is False


def test_compare_with_a_file(tmp_path):
    """A lone tensor's name is no matter; the honest run says how much error is allowed."""
    y = np.random.default_rng(0).standard_normal((2, 4, 8, 8))
    save_file({"out": y}, tmp_path / "golden.safetensors")
    for dtype in (np.float32, np.float16):
        np.save(tmp_path / f"{np.dtype(dtype)}.npy", y.astype(dtype))
    _ok("compare", "float32.npy", "golden.safetensors", "--honest", "float32.npy")
    _ok("compare", "float32.npy", "golden.safetensors", "--honest", "float16.npy")
    rough = _call("compare", "float16.npy", "golden.safetensors", "--honest", "float32.npy")
    assert rough.exit_code == 1 and "first wrong one in the order of computation: out" in rough.stdout


def test_of_many_wrong_taps_the_first_are_shown_and_the_rest_counted(tmp_path):
    y = {f"{i:02}": np.random.default_rng(i).standard_normal((2, 4, 8)) for i in range(30)}
    save_file(y, "golden.safetensors")
    save_file({name: t.astype(np.float32) for name, t in y.items()}, "honest.safetensors")
    save_file({name: (t + (int(name) > 20)).astype(np.float32) for name, t in y.items()}, "found.safetensors")
    said = _call("compare", "found.safetensors", "golden.safetensors", "--honest", "honest.safetensors").stdout
    assert "... and 6 wrong taps more: --json has all" in said and said.count("FAIL  2") == 3


def test_an_output_of_a_stage_is_judged_without_the_others():
    case = "stage/sigmas/flux-n5"
    _ok("golden", "make", "--cases", case)
    right = Store("goldens").get(case).outputs["sigmas"]
    save_file({"sigmas": right}, "mine.safetensors")
    said = _ok("compare", "mine.safetensors", case)
    assert "not in the dump, so not judged: 1 tensor: timesteps" in said
    t = 1 - np.arange(5) / 5
    save_file({"sigmas": np.append(3 / (3 + 1 / t - 1), 0)}, "mine.safetensors")
    wrong = _call("compare", "mine.safetensors", case)
    assert wrong.exit_code == 1 and "the reference agrees if shift 3 at every size" in wrong.stdout
    save_file({"a": right, "b": right}, "mine.safetensors")
    assert "FAIL  output 'sigmas' is missing" in _call("compare", "mine.safetensors", case).stdout


def test_pictures_are_not_compared():
    refused = _call("compare", "a.png", "b.PNG").exception
    assert isinstance(refused, BadInput) and "refsd disagree A B -m MODEL -p PROMPT" in str(refused)


@pytest.mark.parametrize("error", [0.0, 1.0])
def test_compare_a_number_without_axes(error):
    save_file({"out": np.array(3.0)}, "golden.safetensors")
    save_file({"out": np.array(3.0, np.float32)}, "honest.safetensors")
    np.save("y.npy", np.float32(3 + error))
    result = _call("compare", "y.npy", "golden.safetensors", "--honest", "honest.safetensors")
    assert result.exit_code == (1 if error else 0), result.exception
    assert ("FAIL" if error else "pass") in result.stdout


def test_a_dump_of_unknown_names_says_so_first():
    save_file({"q": np.zeros((2, 3), np.float32), "k": np.zeros((2, 3), np.float32)}, "dump.safetensors")
    result = _call("compare", "dump.safetensors", _CASE)
    first, second, third, *_ = result.stdout.splitlines()
    assert result.exit_code == 1 and first.startswith("FAIL  dump.safetensors against")
    assert second.startswith("not judged, for the golden has no such name: 2 tensors: k, q")
    assert third == "FAIL  output 'y' is missing"


def test_the_reports_of_conform_replace_no_input(tmp_path):
    (tmp_path / "waivers.toml").write_text("")
    (tmp_path / "engine").write_text("#!/bin/sh")
    (tmp_path / "engine").chmod(0o755)
    call = ["conform", "refsd:float32", "--cases", _CASE]
    assert "an input of this very run" in _bad(*call, "--waivers", "waivers.toml", "--json", "waivers.toml")
    assert "name the same file" in _bad(*call, "--json", "x", "--junit", "x")
    assert "a device; refsd writes whole files only" in _bad(*call, "--junit", "/dev/null")
    assert not (tmp_path / "goldens").exists()
    _ok(*call, "--json", "refsd-report/conform.json")


def test_bad_usage_of_compare(tmp_path):
    np.save(tmp_path / "y.npy", np.zeros(3))
    assert "neither a case" in _bad("compare", "y.npy", "nothing")
    (tmp_path / "flux_tiny").mkdir()
    assert 'did you mean "flux_tiny"?' in _bad("compare", "y.npy", "fluxtiny")
    assert "no such file" in _bad("compare", "none.npy", _CASE)
    assert "numerics profile" in _bad("compare", "y.npy", _CASE, "--numerics", "f8")
    (tmp_path / "y.npy").write_bytes(b"\x93NUMPY")
    assert "not an npy file" in _bad("compare", "y.npy", _CASE)


def test_the_corpus_is_large_enough():
    assert len([name for name in CASES if not name.startswith("full/")]) >= 60


# Which threads a fresh process has after the import, and what its children are told.
THREADS = """
import os, sys
from refsd.cli.numba_threads import import_numba_for
import_numba_for(sys.argv[1:])
import numba
numba.get_num_threads()  # starts them
numba.njit(lambda x: x + 1)(1)  # which has Numba read the environment again
print(numba.config.NUMBA_NUM_THREADS, os.environ.get("NUMBA_NUM_THREADS"))
"""


@pytest.mark.parametrize(
    ("cases", "env", "threads"),
    [
        (["*"], {}, "1 None"),
        (["silu/*", "full/sd15/*"], {}, "many None"),
        (["."], {}, "many None"),
        (["*"], {"NUMBA_NUM_THREADS": "2"}, "2 2"),
    ],
)
def test_small_cases_are_computed_in_one_thread(cases, env, threads):
    clean = {name: value for name, value in os.environ.items() if name != "NUMBA_NUM_THREADS"}
    run = subprocess.run([sys.executable, "-c", THREADS, *cases], env=clean | env, capture_output=True, text=True)
    assert run.stdout.strip() == threads.replace("many", str(cores())), run.stderr
