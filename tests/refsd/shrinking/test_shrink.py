"""A failing case becomes the smallest that fails in the same way, and a folder that reproduces it."""

import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from injection import Bug, Injected, wrong_operation
from safetensors.numpy import load_file
from typer.testing import CliRunner

from refsd.cases import CASES
from refsd.cli import app
from refsd.cli.find_case import find_case
from refsd.golden.engine import EngineFailure
from refsd.golden.operations.softmax import NO_MAXIMUM
from refsd.golden.report import Result
from refsd.numerics.errors import BadInput
from refsd.numerics.profiles import FLOAT32
from refsd.shrinking import folder, ggml_program
from refsd.shrinking.failure import Failure, ask, failure_of, runner_of
from refsd.shrinking.shrink import shrink

EXAMPLE = Path(__file__).parents[3] / "examples" / "exec" / "engine.py"
ENGINE = f"exec:{sys.executable} {EXAMPLE}"
CASE = "layer_norm/f32/tiny-x33x320"


@pytest.fixture(scope="module")
def runner():
    return runner_of()


def shrunk(runner, bug: Bug, name: str, **how):
    engine = Injected(bug, FLOAT32, None)
    case = CASES[name]
    result = ask(runner, engine, case)
    return shrink(lambda smaller: ask(runner, engine, smaller), case, result, **how)


def shapes(of):
    return {name: tensor.shape for name, tensor in of.case.tensors.items()}


def tail_lost(self, right, x, *rest):
    """Sums over whole blocks of 8, where there is one."""
    n = x.shape[-1] // 8 * 8 or x.shape[-1]
    mean, square = (np.mean(t[..., :n], axis=-1, keepdims=True) for t in (x, np.square(x)))
    weight, bias, eps = rest
    y = (x - mean) / np.sqrt(square - mean**2 + eps)
    y = y * weight if weight is not None else y
    return y + bias if bias is not None else y


def first_key_head(self, right, q, k, v, *rest):
    return right(q, *(np.ascontiguousarray(np.broadcast_to(t[:, :, :1], t.shape)) for t in (k, v)), *rest)


@pytest.mark.parametrize(
    ("methods", "case", "smallest"),
    [
        # Which numbers a sum lacks is told from two rows.
        ({"layer_norm": tail_lost}, "layer_norm/f32/awkward-x33x77", {"x": (2, 9)}),
        (
            {"group_norm": lambda self, right, x, w, b, g, eps: right(x, w, b, 1, eps)},
            "group_norm/f32/groups-n3-c33-h4-w5-g11",
            {"x": (1, 2, 1, 1), "weight": (2,), "bias": (2,)},
        ),
        (
            {"attention": first_key_head},
            "attention/f32/grouped-b2-l20-j33-h6-d32-g2",
            {"q": (1, 1, 2, 1), "k": (1, 1, 2, 1), "v": (1, 1, 2, 1)},
        ),
        (
            {"linear": lambda self, right, x, w, bias, kind: right(x, w, None, kind)},
            "linear/q4_0/tokens-x77x320-o33",
            {"x": (1, 1), "weight": (1, 1), "bias": (1,)},
        ),
    ],
)
def test_the_smallest_shape_is_found(runner, methods, case, smallest):
    found = shrunk(runner, wrong_operation(**methods), case)
    assert found.whole and shapes(found) == smallest
    failure, first = failure_of(found.result), failure_of(found.first)
    assert first.is_that_of(failure) and first.causes[:1] == failure.causes[:1]


def test_block_types_stay_where_they_matter(runner):
    """Down to one block. In how many rows it is still the likeliest cause, the BLAS's order of sums decides."""

    def no_minimum(case, inputs, y):
        kind = inputs["weight"].type
        return y if kind == "f32" else {"y": y["y"] + 1}

    found = shrunk(runner, Bug(answer=no_minimum), "linear/q8_0/tokens-x77x320-o33")
    assert found.case.inputs["weight"].type == "q8_0"
    rows, width = shapes(found)["weight"]
    assert shapes(found)["x"][0] <= 2 and rows <= 2 and width == 32


def test_a_smaller_case_has_the_same_likeliest_cause_which_names_the_issue(runner, tmp_path):
    """Of one pixel in two rows, a stride of 2 explains as well that the last row is not read."""

    def last_row(case, inputs, y):
        height = inputs["x"].shape[2]
        x, weight = inputs["x"].values().copy(), inputs["weight"].values()
        x[:, :, -1] *= 1 - height % 2
        return {"y": np.einsum("nchw,kc->nkhw", x, weight[:, :, 0, 0]) + inputs["bias"].values()[:, None, None]}

    bug = Bug(answer=last_row)
    found = shrunk(runner, bug, "conv2d/f32/1x1-square-n2-c16-k16-h5-w16")
    assert found.first.causes[0] == found.result.causes[0] == "x, axis H: the last slice is not read"
    assert math.prod(shapes(found)["x"]) <= 6
    folder.write(tmp_path / "out", found, Injected(bug, FLOAT32, None), "injected")
    assert (
        (tmp_path / "out" / folder.ISSUE)
        .read_text()
        .startswith("# conv2d: x, axis H: the last slice is not read\n")
    )


def test_a_case_in_which_another_cause_is_likelier_is_another_failure():
    first = Failure("fail", "numbers", ("last row", "stride"), "conv2d", 9.0)
    assert first.is_that_of(first._replace(causes=("last row", "no bias")))
    assert not first.is_that_of(first._replace(causes=("stride", "last row")))
    assert not first.is_that_of(first._replace(causes=()))
    assert first._replace(causes=()).is_that_of(first)


def test_numbers_and_place_of_a_cause_may_be_others_in_a_smaller_case():
    tail = "nothing is computed: zeros, in the last {} along the flat data, after the last whole block of 8"
    row = "each row has a factor of its own, {}: a statistic of the row"
    for text, one, other in ((tail, "5 of 2541", "1 of 9"), (row, "1.004 to 1.15", "1.1 to 2")):
        result = Result("ggml", "silu/f32/x", "silu", "fail", margin=9.0, causes=(text.format(one),))
        smaller = msgspec.structs.replace(result, causes=(text.format(other),))
        assert failure_of(result).is_that_of(failure_of(smaller))
        assert not failure_of(result).is_that_of(failure_of(msgspec.structs.replace(result, causes=("NaN",))))


def test_a_case_that_is_large_while_one_cause_is_likeliest_is_reduced_by_any(runner, tmp_path):
    """From one row and few columns on the same bug looks like other bugs. The whole case names the issue."""

    def short_tail(case, inputs, y):
        x, weight = inputs["x"].values(), inputs["weight"].values()
        out, wide = y["y"].copy(), x.shape[-1] // 16 * 16
        last = len(weight) // 8 * 8
        out[..., last:] = x[..., :wide] @ weight[last:, :wide].T
        return {"y": out}

    bug = Bug(answer=short_tail)
    found = shrunk(runner, bug, "linear/f32/row-x1x77-o20")
    assert shapes(found) == {"x": (1, 1), "weight": (1, 1)}
    whole, smallest = found.first.causes[0], found.result.causes[0]
    assert found.titled is found.first and whole != smallest
    folder.write(tmp_path / "out", found, Injected(bug, FLOAT32, None), "injected")
    issue = (tmp_path / "out" / folder.ISSUE).read_text()
    assert issue.startswith(f"# linear: {whole}\n") and f"- In `linear/f32/row-x1x77-o20`: {whole}" in issue


def test_the_issue_lists_only_elements_beyond_their_bound_with_their_inputs(runner, tmp_path):
    def beyond(self, right, x):
        return np.where(np.abs(x - 3) < 0.1, right(x) * 2, right(x))

    bug = wrong_operation(silu=beyond)
    found = shrunk(runner, bug, "silu/f32/bend-x33x77", values=False)
    folder.write(tmp_path / "out", found, Injected(bug, FLOAT32, None), "injected")
    table = (tmp_path / "out" / folder.ISSUE).read_text().partition("| element | x | found | expected |")[2]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| [")]
    assert rows and all(abs(float(row[1]) - 3) < 0.1 and float(row[2]) > 5 for row in rows)


def test_numbers_become_plain(runner):
    """From where on the answer is wrong is told only beside right numbers."""
    bug = Bug(answer=lambda case, inputs, y: {"y": np.where(y["y"] > 0.5, 9, y["y"]).astype(np.float32)})
    found = shrunk(runner, bug, "silu/f32/bend-x33x77")
    x = found.case.tensors["x"].values()
    assert 1 < x.size <= 3 and np.array_equal(x, np.round(x))


def test_an_engine_that_dies_is_reduced_to_where_it_dies(runner):
    def die(case, inputs, y):
        if inputs["x"].shape[-1] > 20:
            raise EngineFailure(f"ended by SIGABRT: ASSERT({inputs['x'].shape[-1]} <= 20)")
        return y

    found = shrunk(runner, Bug(answer=die), "silu/f32/bend-x33x77")
    assert found.result.status == "error" and shapes(found) == {"x": (21,)}


def test_a_race_is_not_reduced_and_its_issue_says_so(runner, tmp_path):
    rng = np.random.default_rng(1)
    engine = Injected(
        Bug(answer=lambda case, i, y: {"y": y["y"] - (rng.random((len(y["y"]), 1)) < 0.4)}), FLOAT32, None
    )
    case = CASES["layer_norm/f32/awkward-x33x77"]
    found = shrink(lambda smaller: ask(runner, engine, smaller), case, ask(runner, engine, case))
    assert found.questions == 0 and shapes(found)["x"] == (33, 77)
    folder.write(tmp_path / "out", found, engine, "injected")
    issue = (tmp_path / "out" / folder.ISSUE).read_text()
    assert issue.startswith("# layer_norm: not the same answer twice\n") and "Not reduced: " in issue
    assert "the reference gives the same answer" not in issue and "Ask several times" in issue


def test_another_failure_is_not_followed(runner):
    """Below 4 columns the engine has another bug, which is not the one that was found."""

    def answer(case, inputs, y):
        last = inputs["x"].shape[-1]
        return {"y": np.full_like(y["y"], np.nan) if last < 4 else 2 * y["y"]}

    assert shapes(shrunk(runner, Bug(answer=answer), "silu/f32/bend-x33x77")) == {"x": (4,)}


def test_the_time_is_kept(runner):
    found = shrunk(runner, wrong_operation(layer_norm=tail_lost), "layer_norm/f32/awkward-x33x77", seconds=0)
    assert not found.whole and found.questions == 0 and shapes(found)["x"] == (33, 77)


def run(*arguments):
    return CliRunner().invoke(app, ["shrink", *map(str, arguments)])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("shrink") / "out"
    done = run(f"{ENGINE} --bug", CASE, "-o", path, "--json")
    assert done.exit_code == 1, done.output
    return path, json.loads(done.stdout)


def test_the_command_writes_a_folder(written):
    path, said = written
    assert said["causes"][0] == "eps missing" and said["shapes"] == {"x": [1, 2]} and said["whole"]
    assert {file.name for file in path.iterdir()} == {*said["files"]}
    expected = load_file(path / folder.EXPECTED)
    assert np.abs(expected["found"] - expected["truth"]).max() > 1e4 * expected["limit"].max()
    issue = (path / folder.ISSUE).read_text()
    for text in ("# layer_norm: eps missing", "| x | f32 | 1 x 2 |", CASE, "numpy-example 1.0"):
        assert text in issue
    assert folder.CPP not in said["files"] and "reproduce_ggml" not in issue  # the engine is no ggml


def test_a_program_that_declares_ggml_s_numerics_gets_a_program_of_ggml(tmp_path):
    program = tmp_path / "engine.py"
    program.write_text(EXAMPLE.read_text().replace('"numerics": "float32"', '"numerics": "ggml-cpu"'))
    run(f"exec:{sys.executable} {program} --bug", CASE, "-o", tmp_path / "out")
    assert "ggml_norm(ctx, t0, 1e-05f)" in (tmp_path / "out" / folder.CPP).read_text()
    assert "reproduce_ggml.cpp" in (tmp_path / "out" / folder.ISSUE).read_text()


def test_the_issue_has_the_title_under_which_the_run_reported_the_failure(tmp_path):
    """Several known bugs fit one case; those of the other cases told which."""
    program = tmp_path / "engine.py"
    program.write_text(EXAMPLE.read_text().replace("x - x.max(-1, keepdims=True)", "x"))
    engine = f"exec:{sys.executable} {program}"
    report, goldens = tmp_path / "report", str(tmp_path / "goldens")
    asked = ["conform", engine, "--cases", "softmax/*", "--golden", goldens, "--report", str(report)]
    assert f"2 cases: {NO_MAXIMUM}" in CliRunner().invoke(app, asked).output
    for known, first in ((tmp_path, "the maximum is sought from -10000 on"), (report, NO_MAXIMUM)):
        run(engine, "softmax/f32/low-x20x77", "--report", known, "-o", tmp_path / "out")
        assert (tmp_path / "out" / "issue.md").read_text().startswith(f"# softmax: {first}")
    program.write_text(EXAMPLE.read_text())
    now = run(engine, "softmax/f32/low-x20x77", "--report", report, "-o", tmp_path / "out")
    assert now.exit_code == 0 and f"nothing to shrink; in the report it failed: {NO_MAXIMUM}" in now.output


def test_its_script_fails_as_the_engine_does_and_passes_another(written):
    path, _ = written
    lines = (path / folder.PYTHON).read_text().split('"""')[2].splitlines()
    assert sum(bool(line) for line in lines) <= 13
    for engine, code in ((), 1), ((ENGINE,), 0):
        command = [sys.executable, "-P", str(path / folder.PYTHON), *engine]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
    assert ": pass." in done.stdout


def test_its_script_says_in_a_line_that_the_engine_is_not_there(written):
    path, _ = written
    command = [sys.executable, "-P", folder.PYTHON, "exec:./engine of 'mine'"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("exec:./engine of 'mine' cannot be judged: ")


def test_its_script_and_its_issue_say_what_to_run_where(written):
    path, _ = written
    command = f"{os.path.relpath(path)}/reproduce.py {shlex.quote(ENGINE + ' --bug')}"
    script, issue = (path / folder.PYTHON).read_text(), (path / folder.ISSUE).read_text()
    assert f"    python {command.partition(' ')[0]} [ENGINE]\n\nin the folder where refsd was run" in script
    assert f"In the folder where refsd was run, so that the engine's path holds:\n\n    python {command}" in issue
    assert "with uv `uv run python`" in issue


def test_a_folder_on_another_drive_is_named_whole_and_a_backslash_is_one(written, monkeypatch):
    def of_two_drives(path):
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    monkeypatch.setattr("os.path.relpath", of_two_drives)
    path, _ = written
    assert folder.from_here(path) == path.absolute()
    assert (path / folder.PYTHON).read_text().startswith('r"""')


def test_a_folder_is_a_case_again(written):
    path, _ = written
    case = find_case(str(path))
    assert case.realize()["x"].shape == (1, 2) and find_case(str(path / folder.CASE)).op == "layer_norm"
    done = run(ENGINE, path, "-o", path.parent / "again")
    assert done.exit_code == 0 and "nothing to shrink" in done.output and not (path.parent / "again").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((ENGINE, "layer_norm/f32/tiny"), "no case 'layer_norm/f32/tiny' (did you mean"),
        ((ENGINE, "group_norm/f32/plain-n2-c64-h9-w7-g32"), "numpy-example does not take group_norm"),
        (("torch9", CASE), "unknown engine 'torch9'"),
    ],
)
def test_bad_usage_is_one_line(arguments, says, tmp_path):
    done = run(*arguments, "-o", tmp_path / "out")
    assert isinstance(done.exception, BadInput) and says in str(done.exception)


def test_a_folder_of_others_is_not_replaced(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    done = run(f"{ENGINE} --bug", CASE, "-o", tmp_path)
    assert isinstance(done.exception, BadInput) and "not written by refsd" in str(done.exception)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[:-9], "not a case of `refsd shrink`"),
        (lambda text: text.replace('"shape": [\n     1', '"shape": [\n     10000000000', 1), "at most"),
        (lambda text: text.replace('"f32"', '"f33"'), "unknown type 'f33'"),
        (lambda text: text.replace('"x": {', '"z": {', 1), "has ['z']"),
    ],
)
def test_a_damaged_folder_is_refused(written, tmp_path, change, says):
    path, _ = written
    for name in (folder.CASE, folder.INPUTS):
        (tmp_path / name).write_bytes((path / name).read_bytes())
    (tmp_path / folder.CASE).write_text(change((path / folder.CASE).read_text()))
    with pytest.raises(BadInput) as error:
        folder.read(tmp_path)
    assert says in str(error.value)


def test_every_operation_of_ggml_can_be_written_down(runner):
    """The builders take a program for a graph; what they make is compiled in tests/peers/."""
    reference = Injected(Bug(), FLOAT32, None)
    for op in ggml_program.BUILDERS:
        case = CASES[next(name for name in CASES if name.startswith(f"{op}/"))]
        answered = []
        ask(runner._replace(measured=answered.append), reference, case)
        source = ggml_program.source("ggml", answered[0].standard)
        assert source is None or "ggml_build_forward_expand" in source
