"""Give the tensors of a dump the reference's names: pairs MINE=THEIRS, on the command line or in a file."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from refsd.golden.input_file import read_input
from refsd.golden.wording import did_you_mean
from refsd.numerics.errors import BadInput

_LARGEST = 1 << 20
Names = Mapping[str, str]


def read_names(given: Sequence[str]) -> dict[str, str]:
    """Read pairs -> a dump's name -> the reference's.

    given: "MINE=THEIRS", or a file with such a pair a line; lines that begin with # are left out

    Raises BadInput for a text that is neither, and for a name that stands twice.
    """
    names: dict[str, str] = {}
    for text in given:
        lines = [text] if "=" in text else _lines(Path(text))
        for line in lines:
            mine, equals, theirs = (part.strip() for part in line.partition("="))
            if not (mine and equals and theirs) or mine.count("*") != theirs.count("*"):
                raise BadInput(f"--names {line!r}: expected MINE=THEIRS, each with as many * as the other")
            if names.get(mine, theirs) != theirs:
                raise BadInput(f"--names {mine!r}: named {names[mine]!r} and {theirs!r}; leave one of them out")
            names[mine] = theirs
    return names


def _lines(path: Path) -> list[str]:
    if not path.exists():
        raise BadInput(f"--names {path}: neither MINE=THEIRS nor a file")
    try:
        text = read_input(path, _LARGEST, "pairs MINE=THEIRS, one a line").decode()
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not text: expected pairs MINE=THEIRS, one a line") from None
    return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def renamed(actual: Mapping[str, np.ndarray], names: Names) -> dict[str, np.ndarray]:
    """Return the tensors under their new names; a * stands for any text, the same on both sides.

    Raises BadInput where two tensors get one name.
    """
    result: dict[str, np.ndarray] = {}
    before: dict[str, str] = {}
    for name, y in actual.items():
        new = _new_name(name, names)
        if new in result:
            raise BadInput(f"--names: {before[new]!r} and {name!r} both become {new!r}")
        result[new], before[new] = y, name
    return result


def unused(actual: Mapping[str, np.ndarray], names: Names, given: Sequence[str]) -> list[str]:
    """List the names of files that no tensor of the dump has: one file serves several dumps.

    given: as `read_names` takes it

    Raises BadInput for such a name that is written on the command line.
    """
    typed = _typed(given)
    idle = [mine for mine in names if not any(_match(mine, name) for name in actual)]
    for mine in idle:
        if mine in typed:
            raise BadInput(f"--names {mine!r}: no tensor of the dump has this name{did_you_mean(mine, actual)}")
    return idle


def targets(
    actual: Mapping[str, np.ndarray], names: Names, given: Sequence[str]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return "MINE=THEIRS" -> the names that tensors of the dump get by it: of the command line's pairs, of files'.

    given: as `read_names` takes it
    """
    typed = _typed(given)
    pairs: tuple[dict[str, list[str]], dict[str, list[str]]] = {}, {}
    for mine, theirs in names.items():
        got = [_new_name(name, {mine: theirs}) for name in actual if _match(mine, name)]
        pairs[mine not in typed][f"{mine}={theirs}"] = got
    return pairs


def _typed(given: Sequence[str]) -> set[str]:
    """Return the dump's names in pairs that are written on the command line."""
    return {text.partition("=")[0].strip() for text in given if "=" in text}


def _new_name(name: str, names: Names) -> str:
    if name in names:
        return names[name]
    for mine, theirs in names.items():
        match = _match(mine, name) if "*" in mine else None
        if match is not None:
            texts = iter(match.groups())
            return re.sub(r"\*", lambda _, texts=texts: next(texts), theirs)
    return name


def _match(mine: str, name: str) -> re.Match[str] | None:
    return re.fullmatch("(.*)".join(map(re.escape, mine.split("*"))), name)
