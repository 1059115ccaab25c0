"""Notebooks as pages of the site: imports and plotting are folded, and a line says how to run them."""

import ast
import json
import os
from pathlib import Path

_FOLDED = {"tags": ["hide-input"]}
_PLOTTING = {"plt", "fig", "figure", "ax", "axes", "axis"}


def page(path: Path, there: Path) -> dict:
    """Return the notebook at `path` as the site shows it at `there`."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells, begun = [], False
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            cells.append(cell | {"source": "".join(cell["source"])})
            if len(cells) == 1:
                cells.append(_how_to_run(path, there))
        else:
            cells += _parted(cell) if begun else [cell | {"metadata": _FOLDED}]
            begun = True
    return notebook | {"cells": cells}


def _how_to_run(path: Path, there: Path) -> dict:
    link = os.path.relpath(path, there.parent)
    text = (
        f"**Run this:** {{download}}`{path.name} <{link}>`, or in a clone of refsd "
        f"`uv run --group notebooks python notebooks/execute.py -o mine {path.name}`\n"
    )
    return {"cell_type": "markdown", "id": "how-to-run", "metadata": {}, "source": text}


def _parted(cell: dict) -> list[dict]:
    """Part a cell where its plotting begins, and fold that; a cell whose plotting asserts something stays whole."""
    source = "".join(cell["source"])
    pictures = any("image/png" in output.get("data", {}) for output in cell["outputs"])
    statements = ast.parse(source).body
    first = next((i for i, one in enumerate(statements) if _plots(one)), None)
    if not pictures or first is None or any(isinstance(one, ast.Assert) for one in statements[first:]):
        return [cell]
    lines = source.splitlines(keepends=True)
    begin = statements[first].lineno - 1
    while begin and lines[begin - 1].lstrip().startswith("#"):
        begin -= 1
    plotting = cell | {"source": "".join(lines[begin:]), "metadata": _FOLDED}
    if not "".join(lines[:begin]).strip():
        return [plotting]
    computing = cell | {"source": "".join(lines[:begin]).rstrip(), "outputs": []}
    return [computing, plotting | {"id": f"{cell.get('id', '')}-plot"}]


def _plots(statement: ast.stmt) -> bool:
    """True for a statement that plots; a function is not called yet."""
    if isinstance(statement, ast.FunctionDef):
        return False
    return any(isinstance(node, ast.Name) and node.id in _PLOTTING for node in ast.walk(statement))


def minutes(path: Path) -> int:
    """Return the time to read a notebook: 200 words or 12 lines of code a minute, to the next five minutes."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = [("".join(cell["source"]), cell["cell_type"]) for cell in cells]
    words = sum(len(source.split()) for source, kind in sources if kind == "markdown")
    lines = sum(len(source.splitlines()) for source, kind in sources if kind == "code")
    return 5 * round((words / 200 + lines / 12) / 5)
