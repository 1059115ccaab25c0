"""Write many tensor names as few patterns: "output_blocks.11.1.*", "layers.3-5.attention.qkv.weight"."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

_NUMBERS = re.compile(r"(?<![^.])[0-9]+(?![^.])")


def grouped(names: Collection[str], universe: Iterable[str]) -> list[str]:
    """Return patterns that match exactly `names` among the names of `universe`.

    A prefix all of whose names are there is written "prefix.*"; patterns that differ by one number are joined.
    """
    wanted = set(names)
    tree: dict[str, Any] = {}
    for name in dict.fromkeys([*universe, *names]):
        node = tree
        for part in name.split("."):
            node = node.setdefault(part, {})
        node[""] = name
    return _joined(_patterns(tree, "", wanted))


def few(patterns: list[str], most: int = 3, between: str = ", ") -> str:
    """Join the first patterns, and say how many more there are."""
    more = f" and {len(patterns) - most} more" if len(patterns) > most else ""
    return f"{between.join(patterns[:most])}{more}"


def _patterns(node: Mapping[str, Any], prefix: str, wanted: set[str]) -> list[str]:
    leaves = list(_leaves(node))
    if not any(leaf in wanted for leaf in leaves):
        return []
    if len(leaves) > 1 and len(node) > 1 and prefix and all(leaf in wanted for leaf in leaves):
        return [f"{prefix}*"]
    found = [node[""]] if node.get("") in wanted else []
    for part, below in node.items():
        if part:
            found += _patterns(below, f"{prefix}{part}.", wanted)
    return found


def _leaves(node: Mapping[str, Any]) -> Iterable[str]:
    for part, below in node.items():
        if part:
            yield from _leaves(below)
        else:
            yield below


def _joined(patterns: list[str]) -> list[str]:
    """Join patterns that differ in one number only: the number becomes a range, or a list."""
    for at in range(8):
        groups: dict[str, list[int]] = {}
        plain: dict[str, str] = {}
        for pattern in patterns:
            numbers = list(_NUMBERS.finditer(pattern))
            if at < len(numbers):
                start, end = numbers[at].span()
                key = f"{pattern[:start]}\0{pattern[end:]}"
                groups.setdefault(key, []).append(int(numbers[at][0]))
            else:
                key = pattern
            plain.setdefault(key, pattern)
        patterns = [
            key.replace("\0", _ranges(groups[key])) if len(groups.get(key, ())) > 1 else pattern
            for key, pattern in plain.items()
        ]
    return patterns


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
