"""Lay out the source of the site: the repository's pages where they stand, with links to code led to code pages."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import api_pages
import code_pages
import diagrams
import lookup
import notebook_pages
import rounding
import tolerance

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
PAGES = (
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
    *(f"{folder}/README.md" for folder in ("kernels", "golden", "notebooks")),
    "refsd/engines/exec/protocol.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)
_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s#]+)(#[^)\s]*)?\)")


def assemble(source: Path) -> None:
    shutil.copytree(HERE / "pages", source)
    shutil.copy(ROOT / "docs" / "engine-fails.svg", source / "engine-fails.svg")
    linked: set[str] = set()
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        _write(source / name, _led(text, name, source, linked))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        name = path.relative_to(ROOT).as_posix()
        notebook = notebook_pages.page(path, source / name)
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = _led(cell["source"], name, source, linked)
        _write(source / name, json.dumps(notebook))
    code = code_pages.write(ROOT, source, linked, diagrams.OF_CODE)
    _name_files(source / "kernels" / "README.md", code)
    for name, text in {
        **lookup.pages(),
        **api_pages.pages(),
        **diagrams.pages(),
        **tolerance.pages(),
        **rounding.pages(),
    }.items():
        _write(source / name, text)
    _place_others(source)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _led(text: str, name: str, source: Path, linked: set[str]) -> str:
    """Return a page's text with links to code leading to code pages; copy the pictures that it shows."""
    folder = (ROOT / name).parent

    def led(link: re.Match) -> str:
        shown, target = link[1], link[2]
        path = (folder / target).resolve()
        if "://" in target or not path.is_relative_to(ROOT):
            return link[0]
        inside = path.relative_to(ROOT).as_posix()
        if inside == "README.md":
            return f"{shown}({_from(name, 'index.md')})"
        if inside in PAGES or path.suffix == ".ipynb":
            return link[0]
        if path.suffix in (".png", ".svg"):
            there = source / inside
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, there)
            return link[0]
        if path.is_file():
            linked.add(inside)
            return f"{shown}({_from(name, code_pages.page_of(inside))})"
        return shown.strip("[]")

    return _LINK.sub(led, text)


def _place_others(source: Path) -> None:
    """Put pages of docs/ that no page of the site names at the end of Look up."""
    named = "\n".join(path.read_text(encoding="utf-8") for path in (HERE / "pages").glob("*.md"))
    others = [page.removesuffix(".md") for page in PAGES if page.removesuffix(".md") not in named]
    if others:
        with (source / "lookup.md").open("a", encoding="utf-8") as page:
            page.write("\n## More\n\n```{toctree}\n:maxdepth: 1\n\n" + "\n".join(others) + "\n```\n")


def _from(name: str, target: str) -> str:
    return os.path.relpath(target, os.path.dirname(name) or ".")


def _name_files(page: Path, code: Iterable[str]) -> None:
    """Make links of the file names in the first column of kernels/README.md."""
    known = set(code)

    def link(folder: str) -> Callable[[re.Match], str]:
        def one(found: re.Match) -> str:
            for inside in (f"kernels/{found[1]}", f"kernels/{folder}{found[1]}"):
                if inside in known:
                    return f"[`{found[1]}`]({_from('kernels/README.md', code_pages.page_of(inside))})"
            return found[0]

        return one

    rows = []
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            first, bar, rest = line[2:].partition("|")
            folder = re.match(r"`(\w+/)?", first)[1] or ""
            line = f"| {re.sub(r'`([^`]+)`', link(folder), first)}{bar}{rest}"
        rows.append(line)
    page.write_text("\n".join(rows) + "\n", encoding="utf-8")
