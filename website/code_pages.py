"""Pages of code: each function's prose beside its code."""

import ast
import os
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

# Folders whose files all have a page, and their headings.
FOLDERS = {
    "kernels": "Kernels",
    "kernels/quant": "Block types and small floats",
    "kernels/adapters": "Adapters",
    "samplers": "Samplers",
    "samplers/schedules": "Schedules",
    "golden/operations": "Operations: bounds, known bugs and cases",
}

# Equations (indented), shapes and fields ("x: [N, D]", "K, C: channels", "-> y"); "Source: ..." is a sentence.
_ALIGNED = re.compile(r"\s|->|([a-z_]\w*|\w{1,2})(, \w+)*:\s")


def page_of(name: str) -> str:
    """kernels/linear.py -> code/kernels/linear.py.md; models/flux/__init__.py -> code/models/flux.py.md"""
    return f"code/{_title(name)}.md"


def _title(name: str) -> str:
    return name.replace("/__init__.py", ".py")


def write(root: Path, source: Path, linked: set[str], diagrams: Mapping[str, str]) -> list[str]:
    """Write the code pages and their list; diagrams: file -> page of its diagram. -> the files that have one"""
    groups = {
        title: sorted(
            f"{folder}/{path.name}" for path in (root / folder).glob("*.py") if path.name != "__init__.py"
        )
        for folder, title in FOLDERS.items()
    }
    forwards = sorted((root / "refsd/models").glob("*/__init__.py"))
    notebooks = sorted((root / "notebooks").glob("*.ipynb"))
    groups["Models"] = [str(path.relative_to(root)) for path in forwards]
    others = sorted(linked - {name for names in groups.values() for name in names})
    groups["Other files that pages name"] = others
    for names in groups.values():
        for name in names:
            there = source / page_of(name)
            there.parent.mkdir(parents=True, exist_ok=True)
            shown = [source / page for file, page in diagrams.items() if file == name]
            shown += [source / path.relative_to(root) for path in notebooks if name in path.read_text("utf-8")]
            there.write_text(_page(root, name, there, shown), encoding="utf-8")
    index = "# Code\n\nEach file of what computes, prose beside code. Learn says where to begin.\n\n"
    (source / "code" / "index.md").write_text(index + _list(2, map(_file_name, groups)), encoding="utf-8")
    for title, names in groups.items():
        entries = (f"{Path(_title(name)).name} <{_title(name)}.md>" for name in names)
        text = f"# {title}\n\n{_list(1, entries)}"
        (source / "code" / f"{_file_name(title)}.md").write_text(text, encoding="utf-8")
    return [name for names in groups.values() for name in names]


def _list(depth: int, entries: Iterable[str]) -> str:
    return f"```{{toctree}}\n:maxdepth: {depth}\n\n" + "\n".join(entries) + "\n```\n"


def _file_name(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())


def _page(root: Path, name: str, there: Path, shown: Sequence[Path] = ()) -> str:
    """Return a file's page at `there`. shown: its diagram and the notebooks that link to it"""
    path, text = root / name, (root / name).read_text(encoding="utf-8")
    include = os.path.relpath(path, there.parent)
    language = {".py": "python", ".cpp": "cpp", ".yml": "yaml", ".toml": "toml"}.get(path.suffix, "text")
    title = f"# {_title(name)}\n\n"
    if path.suffix != ".py":
        return f"{title}{_code(include, language, [(1, text.count(chr(10)))])}"
    tree = ast.parse(text)
    parts = [title, _prose(ast.get_docstring(tree) or ""), *_steps_to(root, name, there)]
    if shown:
        links = (f"[{_words(path)}]({os.path.relpath(path, there.parent)})" for path in shown)
        parts.append(f"See {', '.join(links)}.\n\n")
    begin = tree.body[0].end_lineno + 1 if _is_docstring(tree.body[0]) else 1
    lifted = _first_equation(root, name)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (said := ast.get_docstring(node)):
            if node.name == path.stem and lifted:
                said = said.replace(textwrap.indent(lifted, "    ") + "\n\n", "", 1)
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            parts += _between(text, begin, first - 1, include)
            parts.append(_beside(node, said, include, first))
            begin = node.end_lineno + 1
    parts += _between(text, begin, len(text.splitlines()), include)
    return "".join(parts)


def _words(path: Path) -> str:
    number, _, name = path.stem.partition("_")
    return f"notebook {number}, {name.replace('_', ' ')}" if path.suffix == ".ipynb" else "its block diagram"


def naive_of(root: Path, name: str) -> str:
    """Return the naive version of a kernel or of the operation that it is another algorithm of; "" if none."""
    folder, stem = os.path.dirname(name), Path(name).stem
    if folder.partition("/")[0] != "kernels":
        return ""
    there = Path("tests/naive", os.path.relpath(folder, "kernels"))
    words = stem.split("_")
    longest_first = (f"{'_'.join(words[:n])}.py" for n in range(len(words), 0, -1))
    return next((str(there / file) for file in longest_first if (root / there / file).is_file()), "")


def _steps_to(root: Path, name: str, there: Path) -> list[str]:
    """Return what a kernel's page shows before its code: the equation, then the naive version."""
    naive = naive_of(root, name)
    if not naive:
        return []
    text = (root / naive).read_text(encoding="utf-8")
    tree = ast.parse(text)
    said = ast.get_docstring(tree) or ""
    equation = _first_equation(root, name)
    begin = (tree.body[0].end_lineno or 0) + 1 if said else 1
    shown = "".join(_between(text, begin, len(text.splitlines()), os.path.relpath(root / naive, there.parent)))
    return [
        f"## Equation\n\n::::{{container}} said\n{_prose(_joined(equation))}::::\n\n" if equation else "",
        f"## Naive version\n\n{_prose(said)}From `{naive}`, which the tests hold the kernel to.\n\n{shown}",
        "## Kernel\n\n",
    ]


def _first_equation(root: Path, name: str) -> str:
    """Return the equation of the operation that a kernel computes; a kernel's own stays beside its code."""
    naive = naive_of(root, name)
    return _equation(root / os.path.dirname(name) / Path(naive).name, Path(naive).stem) if naive else ""


def _joined(equation: str) -> str:
    """Join the lines of a sum that goes on far to the right, so that a narrow page can break it elsewhere."""
    return textwrap.indent(re.sub(r"\n {12,}(?=[a-z(])", " ", equation), "    ")


def _equation(path: Path, function: str) -> str:
    """Return the equation of a function's docstring: its first indented block."""
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else ast.Module([], [])
    said = next((ast.get_docstring(node) for node in tree.body if getattr(node, "name", "") == function), None)
    blocks = re.split(r"\n\s*\n", said or "")
    return next((textwrap.dedent(block) for block in blocks if block.startswith("    ") and "=" in block), "")


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _between(text: str, begin: int, end: int, include: str) -> list[str]:
    """Return the code between two functions, without blank lines around it."""
    lines = text.splitlines()
    filled = [i for i in range(begin, end + 1) if lines[i - 1].strip()]
    return [_code(include, "python", [(filled[0], filled[-1])])] if filled else []


def _beside(node: ast.FunctionDef | ast.ClassDef, said: str, include: str, first: int) -> str:
    quoted = node.body[0]
    ranges = [(first, quoted.lineno - 1)]
    if quoted.end_lineno < node.end_lineno:
        ranges.append((quoted.end_lineno + 1, node.end_lineno))
    heading = "## " + node.name.replace("_", "\\_") + "\n\n"
    code = _code(include, "python", ranges)
    return f"{heading}:::::{{container}} beside\n::::{{container}} said\n{_prose(said)}::::\n{code}:::::\n\n"


def _code(include: str, language: str, ranges: list[tuple[int, int]]) -> str:
    lines = ",".join(f"{begin}-{end}" for begin, end in ranges)
    return f"```{{listing}} {include}\n:language: {language}\n:lines: {lines}\n```\n\n"


def _prose(said: str) -> str:
    """Set a docstring: sentences as paragraphs; equations, shapes and what else is aligned as it stands."""
    parts = []
    for block in re.split(r"\n\s*\n", said):
        lines = block.splitlines()
        if any(_ALIGNED.match(line) for line in lines):
            parts.append("```{code-block} text\n" + block + "\n```\n\n")
        else:
            parts.append(re.sub(r"([\\`*_<>\[\]$#{}|~])", r"\\\1", " ".join(lines)) + "\n\n")
    return "".join(parts)
