"""The kit for CI: its YAML is whole, its commands exist, and its shell does what docs/ci.md says."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from cli_commands import calls, check

from refsd.kernels._jit import cache_dir

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[0-9]*.yml"))
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
ENGINE = f"exec:{sys.executable} {ROOT / 'examples' / 'exec' / 'engine.py'}"


def blocks(kind: str) -> list[str]:
    """The page's fenced blocks of a kind, without their indentation."""
    found = re.findall(rf"^( *)```{kind}\n(.*?)^ *```$", PAGE, re.M | re.S)
    return [re.sub(rf"^{indent}", "", text, flags=re.M) for indent, text in found]


def run_lines(steps) -> list[str]:
    return [line for step in steps for line in step.get("run", "").splitlines()]


def workflow(name: str) -> dict:
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_whole(path):
    told = yaml.safe_load(path.read_text())
    assert told["permissions"] == {"contents": "read"}, "a job asks for more by itself"
    assert told[True], "YAML reads `on` as true"
    for name, job in told["jobs"].items():
        assert {"runs-on", "steps"} <= job.keys(), name
        assert all(("run" in step) != ("uses" in step) for step in job["steps"]), name
        assert {job.get("needs", name)} <= told["jobs"].keys()


def test_every_command_of_refsd_exists():
    lines = run_lines(ACTION["runs"]["steps"])
    for path in WORKFLOWS:
        lines += [
            line for job in yaml.safe_load(path.read_text())["jobs"].values() for line in run_lines(job["steps"])
        ]
    for text in (*blocks("sh"), *blocks("yaml")):
        lines += text.splitlines()
    told = [re.sub(r'"?\$\{(\w+)[^"]*\}"?', r"\1", line) for line in lines if "refsd " in line]
    found = [arguments for line in told for arguments in calls(line)]
    for arguments in found:
        check(arguments)
    assert len(found) >= 10


def test_the_workflow_of_this_project_runs_the_lines_of_ci_run():
    script = (ROOT / ".ci" / "run").read_text()
    for name, job in workflow("ci.yml")["jobs"].items():
        for line in run_lines(job["steps"]):
            if line != ".ci/run" and "GITHUB_STEP_SUMMARY" not in line:
                assert line in script, f"{name}: {line}"


def test_the_matrix_is_what_the_package_says():
    with open(ROOT / "pyproject.toml", "rb") as file:
        classifiers = tomllib.load(file)["project"]["classifiers"]
    versions = [c.rpartition(" ")[2] for c in classifiers if re.search(r":: 3\.\d+$", c)]
    assert workflow("ci.yml")["jobs"]["suite"]["strategy"]["matrix"]["python"] == versions


def test_the_release_publishes_with_an_identity_and_no_token():
    publish = workflow("release.yml")["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"} and publish["environment"] == "pypi"
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_the_action_reads_every_input_and_no_other():
    text = (ROOT / "action.yml").read_text()
    assert set(re.findall(r"inputs\.([\w-]+)", text)) == ACTION["inputs"].keys()
    for step in ACTION["runs"]["steps"]:
        if "run" in step:
            assert step["shell"] == "bash"
            # An input inside the script could be a command of its own.
            assert "${{" not in step["run"]


def test_the_page_uses_inputs_that_the_action_has():
    (job,) = yaml.safe_load(blocks("yaml")[0])["jobs"].values()
    (used,) = [step for step in job["steps"] if "refsd@" in step.get("uses", "")]
    assert used["with"].keys() <= ACTION["inputs"].keys()
    assert all(yaml.safe_load(block) for block in blocks("yaml"))
    (waivers,) = blocks("toml")
    assert tomllib.loads(waivers)["waiver"][0]["reason"]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_is_whole(path):
    form = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= form.keys()
    assert all(item["attributes"]["label"] for item in form["body"])
    for text in re.findall(r"`(refsd [^`]*)`", path.read_text()):
        for arguments in calls(text):
            check(arguments)


def test_the_caches_key_changes_with_what_is_installed(tmp_path):
    (script,) = [step["run"] for step in ACTION["runs"]["steps"] if step.get("id") == "install"]
    install, key = script.split("\n", 1)
    assert install == 'python -m pip install --quiet "$PACKAGE"'
    keys = []
    for installed in ("numba==1", "numba==2"):
        (tmp_path / "out").write_text("")
        freeze = key.replace("python -m pip freeze", f"echo {installed}")
        env = {**os.environ, "GITHUB_OUTPUT": str(tmp_path / "out")}
        subprocess.run(["bash", "-eo", "pipefail", "-c", freeze], env=env, check=True)
        keys.append((tmp_path / "out").read_text())
    assert all(re.fullmatch(r"version=[0-9a-f]{16}\n", key) for key in keys) and keys[0] != keys[1]


def judge_step(folder: Path, **settings: str) -> tuple[int, str, str]:
    """Run the action's step `Judge` in a folder. -> (exit code, what it printed, the job's summary)"""
    (script,) = [step["run"] for step in ACTION["runs"]["steps"] if step.get("name") == "Judge"]
    defaults = {key.replace("-", "_").upper(): spec.get("default", "") for key, spec in ACTION["inputs"].items()}
    summary = folder / "summary.md"
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, **defaults, **settings, "GITHUB_STEP_SUMMARY": str(summary), "PATH": scripts}
    # As the runner calls a step's shell.
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    done = subprocess.run(bash, cwd=folder, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr, summary.read_text() if summary.exists() else ""


@pytest.mark.jitted
def test_the_action_judges_waives_and_catches_what_is_new(tmp_path):
    compiled = cache_dir()
    assert compiled is not None
    (tmp_path / ".refsd").mkdir()
    (tmp_path / ".refsd" / "kernels").symlink_to(compiled.parent)
    code, printed, summary = judge_step(tmp_path, ENGINE=ENGINE + "\n", CASES="silu/* linear/f32/*")
    assert (code, summary.startswith("# Conforms")) == (0, True), printed
    assert (tmp_path / ".refsd" / "goldens").is_dir()
    code, printed, summary = judge_step(tmp_path, ENGINE=ENGINE, CASES="silu/*", MIN_CASES="99")
    assert code == 1 and "too few" in printed
    code, printed, _ = judge_step(tmp_path, ENGINE="exec:./missing")
    assert code == 2 and "Traceback" not in printed

    bug = f"{ENGINE} --bug"
    code, printed, summary = judge_step(tmp_path, ENGINE=bug, CASES="layer_norm/f32/tiny*")
    assert code == 1 and "Does not conform" in summary
    known = (tmp_path / "refsd-report" / "conform.json").rename(tmp_path / "known.json")
    assert judge_step(tmp_path, ENGINE=bug, CASES="layer_norm/f32/tiny*", BASELINE=str(known))[0] == 0
    waiver = '[[waiver]]\ncases = "layer_norm/*"\nreason = "issue 1"\nexpires = 2999-01-01\n'
    (tmp_path / "refsd-waivers.toml").write_text(waiver)
    assert judge_step(tmp_path, ENGINE=bug, CASES="layer_norm/f32/tiny*")[0] == 0
    # Of the causes, the waiver accepts another one only.
    (tmp_path / "refsd-waivers.toml").write_text(waiver + 'cause = "scale*"\n')
    assert judge_step(tmp_path, ENGINE=bug, CASES="layer_norm/f32/tiny*")[0] == 1
