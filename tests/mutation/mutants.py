"""Break the code on purpose, one small change at a time, and see that a test fails.

    python tests/mutation/mutants.py [--count N] [--seed S] [--only GLOB] [--again FILE:LINE:NUMBER ...]

Mutations are drawn at random from FOLDERS: another operator, comparison, number or truth value, a condition turned
round, a statement left out. They are made in a copy of the tree. Each is tried with the module's own tests, and,
with --rest, what survives with its folder's and all that import it. Survivors are printed: look at each.
Exit code 0: the survivors are for a person to judge.
"""

import argparse
import ast
import fnmatch
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from refsd import samplers

ROOT = Path(__file__).parents[2]
FOLDERS = ("numerics", "golden", "samplers", "refsd/engines", "refsd/conventions", "refsd/pipelines")
# Pages that need a program or a library that a plain installation lacks: tests/peers hold them.
LEFT_OUT = ("refsd/engines/torch/*", "refsd/engines/ggml/*", "refsd/engines/sdcpp/*", "refsd/engines/gguf_py.py")
QUICK = 3  # files of tests, where none has the module's name
SECONDS, SECONDS_REST = 240, 900

COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
COMPARISONS |= {ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"}
SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/", ast.Mod: "*", ast.Pow: "*"}


class Mutant(NamedTuple):
    """
    file:   in the repository
    line:   where it is, from 1
    number: of its mutations on that line
    start:  byte of the source at which `old` stands
    """

    file: str
    line: int
    number: int
    start: int
    old: str
    new: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.number}"

    @property
    def shown(self) -> str:
        old, new = (" ".join(text.split())[:60] for text in (self.old, self.new))
        return f"{self.name}  {old}  ->  {new}"


def mutants_of(path: Path) -> list[Mutant]:
    """Every mutation of a file. Docstrings, annotations, messages of errors and __repr__ stay."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[tuple[int, int, int, str]] = []
    for node in _looked_at(ast.parse(source)):
        begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        text = source[begin:end].decode()
        found += [(node.lineno, begin, end, new) for new in _changes(node, text, source, starts) if new != text]  # type: ignore[attr-defined]
    numbers: dict[int, int] = {}
    made = []
    for line, begin, end, new in sorted(found):
        numbers[line] = numbers.get(line, 0) + 1
        name = path.relative_to(ROOT).as_posix()
        made.append(Mutant(name, line, numbers[line], begin, source[begin:end].decode(), new))
    return made


def _looked_at(tree: ast.AST) -> Iterator[ast.AST]:
    """Expressions and statements that compute."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.arg):
            continue
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from _looked_at(ast.Module([ast.Expr(node.value)], []))
            continue
        if isinstance(node, ast.FunctionDef):
            for part in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                yield from _looked_at(ast.Module([part], []))  # type: ignore[list-item]
            yield from _looked_at(ast.Module(node.body, []))
            continue
        if hasattr(node, "lineno"):
            yield node
        yield from _looked_at(node)


def _changes(node: ast.AST, text: str, source: bytes, starts: list[int]) -> list[str]:
    def part(one: ast.expr) -> str:
        return ast.get_source_segment(source.decode(), one) or ""

    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return [f"{part(node.left)} {COMPARISONS[type(node.ops[0])]} {part(node.comparators[0])}"]
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        return [f"{part(node.left)} {SIGNS[type(node.op)]} {part(node.right)}"]
    if isinstance(node, ast.BoolOp):
        word = "or" if isinstance(node.op, ast.And) else "and"
        return [f" {word} ".join(f"({part(value)})" for value in node.values)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        return [f"({part(node.operand)})"]
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        return [str(not node.value)]
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return [repr(node.value + 1), repr(node.value * 1.2 if type(node.value) is float else node.value - 1)]
    if isinstance(node, ast.IfExp):
        return [f"{part(node.orelse)} if {part(node.test)} else {part(node.body)}"]
    if isinstance(node, ast.If):
        return [text.replace(part(node.test), f"not ({part(node.test)})", 1)]
    if isinstance(node, ast.AugAssign | ast.Continue | ast.Break):
        return ["pass"]
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ["pass"]
    if isinstance(node, ast.Slice) and text.count(":") == 1 and text != ":":
        return [":"]
    return []


# Trying


class Copy:
    """A copy of the tracked tree in which `refsd` is imported from, by links: as in an editable installation."""

    def __init__(self, folder: Path):
        self.root = folder / "tree"
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in listed.decode().split("\0")[:-1]:
            if (ROOT / name).is_symlink() or not (ROOT / name).is_file():
                continue
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        links = folder / "path" / "refsd"
        links.mkdir(parents=True)
        for entry in (self.root / "refsd").iterdir():
            (links / entry.name).symlink_to(entry)
        for floor in {init.parent for init in self.root.glob("*/__init__.py")} - {self.root / "refsd"}:
            (links / floor.name).symlink_to(floor)
        self.environment = {**os.environ, "PYTHONPATH": str(folder / "path"), "PYTHONDONTWRITEBYTECODE": "1"}

    def passes(self, tests: list[str], seconds: float) -> bool | None:
        """Whether the tests pass; None: no answer in time."""
        command = [sys.executable, "-P", "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()

    def survives(self, mutant: Mutant, tests: list[str], seconds: float) -> bool:
        path = self.root / mutant.file
        source = path.read_bytes()
        begin, end = mutant.start, mutant.start + len(mutant.old.encode())
        assert source[begin:end] == mutant.old.encode(), mutant.name
        path.write_bytes(source[:begin] + mutant.new.encode() + source[end:])
        try:
            return self.passes(tests, seconds) is True
        finally:
            path.write_bytes(source)
            shutil.copystat(ROOT / mutant.file, path)


def tests_of(file: str) -> tuple[list[str], list[str]]:
    """The quick ones: of its own folder, with its name or importing it. And that folder, and others that import it.

    A page that no test imports is found by itself: the quick ones of it are those whose parameter it is.
    """
    path = Path(file)
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    module = module if module.startswith("refsd") else f"refsd.{module}"
    package, _, leaf = module.rpartition(".")
    imported = re.compile(
        rf"(from {re.escape(module)} import|import {re.escape(module)}\b"
        rf"|from {re.escape(package)} import [^\n]*\b{leaf}\b)"
    )
    top = "/".join(("tests", *path.parts[: 2 if file.startswith("refsd") else 1]))
    own, near, far = [], [], []
    for test in sorted((ROOT / "tests").rglob("test_*.py")):
        name = test.relative_to(ROOT).as_posix()
        if name.startswith(("tests/peers", "tests/notebooks", "tests/fuzz", "tests/mutation")):
            continue
        if name.startswith(top) and leaf in test.stem:
            own.append(name)
        elif imported.search(test.read_text()):
            (near if name.startswith(top) else far).append(name)
    quick = own or near[:QUICK] or far[:QUICK] or [top]
    names = () if own or near else registered(module)
    return [*quick, "-k", " or ".join(names)] if names else quick, [top, *far]


def registered(module: str) -> list[str]:
    """What the tables of operations and samplers call what a page declares."""
    page = importlib.import_module(module)
    operations = [operation.name for operation in getattr(page, "OPERATIONS", ()) if hasattr(operation, "name")]
    return operations or [name for name, sampler in samplers.SAMPLERS.items() if sampler.__module__ == module]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", default="*")
    parser.add_argument("--files", type=int, help="draw this many files first, and mutants of them alone")
    parser.add_argument("--rest", action="store_true", help="try survivors with every test that imports the module")
    parser.add_argument("--again", nargs="*", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    names = {path: path.relative_to(ROOT).as_posix() for path in files}
    files = [p for p in files if not any(fnmatch.fnmatchcase(names[p], out) for out in LEFT_OUT)]
    rng = Random(options.seed)
    files = [path for path in files if fnmatch.fnmatchcase(names[path], options.only)]
    if options.files:
        files = rng.sample(files, min(options.files, len(files)))
    mutants = [m for path in files for m in mutants_of(path)]
    chosen = [m for m in mutants if m.name in options.again] or rng.sample(
        mutants, min(options.count, len(mutants))
    )
    chosen.sort(key=lambda m: m.file)
    print(
        f"{len(mutants)} mutations in {len(files)} files; {len(chosen)} drawn with seed {options.seed}", flush=True
    )
    survivors, began = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="refsd-mutants-") as name:
        copy = Copy(Path(name))
        sound: dict[tuple[str, ...], bool] = {}
        for i, mutant in enumerate(chosen, 1):
            quick, rest = tests_of(mutant.file)
            if tuple(quick) not in sound:
                sound[tuple(quick)] = copy.passes(quick, SECONDS_REST) is True
            if not sound[tuple(quick)]:
                print(f"{mutant.file}: its tests fail without a mutant: {' '.join(quick)}", flush=True)
                continue
            alive = copy.survives(mutant, quick, SECONDS)
            alive = alive and not (rest and options.rest and not copy.survives(mutant, rest, SECONDS_REST))
            survivors += [mutant] if alive else []
            print(f"{i:4} {'SURVIVES' if alive else 'killed':8} {mutant.shown}", flush=True)
            if options.out:
                options.out.write_text(json.dumps([m._asdict() for m in survivors], indent=1))
    print(
        f"{len(chosen)} tried, {len(chosen) - len(survivors)} killed, {len(survivors)} survive, "
        f"{time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
