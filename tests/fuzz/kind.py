"""What one kind of file is to the fuzzer: examples, mutations, refsd's answer, and a second reader's."""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

# path in a folder -> content; a Path is a file that is linked to: weights that no mutation touches
Files = Mapping[str, bytes | Path]


class Mutation(NamedTuple):
    """
    what:    what was changed, in a few words
    changes: whether it is known to change the meaning; False: a second reader decides
    """

    files: Files
    what: str
    changes: bool = False


class Kind(NamedTuple):
    """
    examples: a folder for files to be linked to -> whole inputs, by name
    mutate:   one change
    read:     the folder -> what refsd says is in it, comparable with ==; raises a refusal
    second:   the same by a reader that is not refsd's, of what refsd has accepted; raises anything to refuse
    commands: the folder -> command lines of refsd that read it too
    """

    name: str
    examples: Callable[[Path], dict[str, Files]]
    mutate: Callable[[Random, Files], Mutation]
    read: Callable[[Path], Any]
    second: Callable[[Path], Any] | None = None
    commands: Callable[[Path], list[list[str]]] = lambda folder: []


def put(folder: Path, files: Files) -> None:
    """Write the files into a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if isinstance(content, Path):
            path.symlink_to(content)
        else:
            path.write_bytes(content)
