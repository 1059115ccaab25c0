"""The page of the Python API, from its docstrings: functions with their examples, and what they return."""

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator

from refsd import api, watching

FUNCTIONS = {
    "refsd.golden": api.golden,
    "refsd.judge": api.judge,
    "refsd.assert_conforms": api.assert_conforms,
    "refsd.forward": api.forward,
    "refsd.watch": watching.watch,
}
RESULTS = {"Golden": api.Golden, "Verdict": api.Verdict, "Outputs": api.Outputs, "Report": watching.Report}
# An entry of a list in a docstring: "case:     its exact name".
_ENTRY = re.compile(r"(\w+(?:, \w+)*): +(\S.*)")


def pages() -> dict[str, str]:
    return {"lookup/api.md": api_page()}


def api_page() -> str:
    parts = [
        "# Python API\n\nThe functions of `refsd`, from their docstrings; tests run the examples. "
        "[Python](../docs/python.md) explains them, with the pytest plugin.\n"
    ]
    for name, function in FUNCTIONS.items():
        parts.append(f"\n## {name}\n\n```python\n{signature(name, function)}\n```\n\n{prose(function)}\n")
    parts.append("\n## What they return\n")
    for name, kind in RESULTS.items():
        parts.append(f"\n### {name}\n\n{prose(kind)}\n")
        if dataclasses.is_dataclass(kind):
            fields = ", ".join(field.name for field in dataclasses.fields(kind))
            parts.append(f"\nFields: {fields}.\n")
    return "".join(parts)


def signature(name: str, function) -> str:
    """Write the signature, a parameter a line."""
    found = inspect.signature(inspect.unwrap(function))
    lines = [f"    {parameter}," for parameter in found.parameters.values()]
    short = f"{name}{found}"
    if len(short) <= 88:
        return short
    ending = f") -> {inspect.formatannotation(found.return_annotation)}"
    return "\n".join([f"{name}(", *lines, ending])


def prose(thing) -> str:
    """Write a docstring as Markdown: its lists as tables, its examples as code."""
    return "\n\n".join(_paragraphs(inspect.getdoc(thing) or ""))


def _paragraphs(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if lines[0].startswith(">>>"):
            yield f"```pycon\n{block}\n```"
        elif _ENTRY.match(lines[0]):
            yield _table(lines)
        else:
            yield textwrap.dedent(block)


def _table(lines: list[str]) -> str:
    entries: list[list[str]] = []
    for line in lines:
        found = _ENTRY.match(line)
        if found:
            entries.append([found[1], found[2]])
        else:
            entries[-1][1] += f" {line.strip()}"
    rows = [f"| `{name}` | {_cell(meaning)} |" for name, meaning in entries]
    return "\n".join(["|  |  |", "|---|---|", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
