"""What refsd asks for is what it imports, in the versions that it is tested with, by pip and by uv alike."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
GROUPS = PYPROJECT["dependency-groups"]
PINS = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]

# The module that a package installs, where its name is another.
MODULES = {"pillow": "PIL", "apache_tvm": "tvm", "iree_base_compiler": "iree", "iree_base_runtime": "iree"}
# Numba's compiler and the messages of onnx, always beside these; and whose tensors are in a module that is watched.
BESIDE = {"llvmlite", "google", "torchao"}


def package(requirement: str) -> str:
    """instant-clip-tokenizer>=0.1; python_version < '3.12' -> instant_clip_tokenizer"""
    return re.match(r"[\w.-]+", requirement)[0].replace("-", "_").lower()


def imported() -> set[str]:
    """The top names of all modules that the five floors import."""
    names = set()
    for floor in ("kernels", "samplers", "numerics", "golden", "refsd"):
        for path in (ROOT / floor).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    names.add(node.module.split(".")[0])
    # refsd.pytest_plugin is imported by pytest alone.
    return names - sys.stdlib_module_names - {"refsd", "pytest"}


def test_every_dependency_is_imported_and_every_import_is_a_dependency():
    asked = {MODULES.get(name, name) for name in map(package, PYPROJECT["project"]["dependencies"])}
    assert asked <= imported(), f"declared, never imported: {sorted(asked - imported())}"
    optional = {package(requirement) for extra in EXTRAS.keys() - {"dev"} for requirement in EXTRAS[extra]}
    optional = {MODULES.get(name, name) for name in optional}
    undeclared = imported() - asked - optional - BESIDE
    assert not undeclared, f"imported, never declared: {sorted(undeclared)}"


def test_every_dependency_is_pinned():
    everything = [*PYPROJECT["project"]["dependencies"]]
    for names in (*EXTRAS.values(), *GROUPS.values()):
        everything += names
    wanted = {package(requirement) for requirement in everything} - {"refsd"}
    pinned = {package(pin) for pin in PINS}
    assert wanted <= pinned, sorted(wanted - pinned)


def test_uv_and_pip_are_told_the_same_versions():
    """uv reads [tool.uv] constraint-dependencies, pip reads constraints.txt; neither reads the other's."""
    assert PYPROJECT["tool"]["uv"]["constraint-dependencies"] == PINS
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in PINS)


def test_the_development_tools_are_one_list():
    """pip before 25.1 knows no dependency groups, uv installs the group dev unasked: one refers to the other."""
    assert GROUPS["dev"] == ["refsd[dev]"]
    assert {"pytest", "hypothesis", "ruff", "pyright"} <= {package(tool) for tool in EXTRAS["dev"]}


def test_the_first_paths_of_the_readme_need_no_new_pip_and_no_torch():
    commands = [line for line in (ROOT / "README.md").read_text().splitlines() if "pip install" in line]
    assert [command.split("&& ")[-1] for command in commands] == ["pip install -c constraints.txt -e '.[dev]'"]
    for requirement in (*PYPROJECT["project"]["dependencies"], *EXTRAS["dev"]):
        assert package(requirement) not in {"torch", "diffusers", "transformers", "accelerate"}


def test_python_m_refsd(tmp_path):
    for folder in (ROOT, tmp_path):
        command = [sys.executable, "-m", "refsd", "--version"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert (done.returncode, done.stdout[:6], done.stderr) == (0, "refsd ", "")
