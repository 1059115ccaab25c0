"""Open a file that the user names: only a regular one, since a pipe may block and a device may never end."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

from refsd.golden.file_kinds import NEVER, START, kind
from refsd.numerics.errors import BadInput

# Device and inode, which identify a file under any name or link.
Identity = tuple[int, int]

_opened: ContextVar[set[Identity] | None] = ContextVar("_opened", default=None)
_folders: ContextVar[set[Path] | None] = ContextVar("_folders", default=None)


@contextmanager
def inputs_of_a_run() -> Iterator[set[Identity]]:
    """Collect the identity of every file opened in the block, so that no output of the run replaces one."""
    found: set[Identity] = set()
    tokens = _opened.set(found), _folders.set(set())
    try:
        yield found
    finally:
        _opened.reset(tokens[0])
        _folders.reset(tokens[1])


def is_input(found: os.stat_result) -> bool:
    """Return True if the run has read this file."""
    return identity(found) in (_opened.get() or ())


def identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def note_input(path: Path) -> None:
    """Count a file among the run's inputs that other code opens: an engine's program, a library, a worker."""
    opened = _opened.get()
    if opened is not None and path.is_file():
        opened.add(identity(path.stat()))


def note_input_folder(path: Path) -> None:
    """Count a folder among the run's inputs with all that is or will be in it, such as a store of goldens."""
    folders = _folders.get()
    if folders is not None:
        folders.add(Path(os.path.realpath(path)))


def input_folder(path: Path) -> Path | None:
    """Return the input folder of the run that contains a path (with links resolved); None if there is none."""
    return next((folder for folder in _folders.get() or () if path.is_relative_to(folder)), None)


def open_input(path: Path, expected: str = "a file") -> BinaryIO:
    """Open a file to read its bytes.

    expected: what should be there, in a few words, for the message

    Raises BadInput for a folder, a pipe, a socket or a device, for a file that cannot be opened, and for a git-lfs
    pointer or a web page in a file's place.
    """
    try:
        _check(path, path.stat(), expected)
        # Another file may have replaced it since; O_NONBLOCK keeps a pipe from waiting for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise BadInput(f"{path}: cannot read the file: {error.strerror}") from None
    except ValueError:
        raise BadInput(f"{str(path)!a}: no file has a NUL in its name; {expected} expected") from None
    file = os.fdopen(handle, "rb")
    try:
        found = os.fstat(handle)
        _check(path, found, expected)
        start = file.read(START)
        file.seek(0)
    except OSError as error:
        file.close()
        raise BadInput(f"{path}: cannot read the file: {error.strerror}") from None
    except BaseException:
        file.close()
        raise
    if kind(start) in NEVER:
        file.close()
        raise BadInput(f"{path}: {kind(start)}; {expected} expected")
    opened = _opened.get()
    if opened is not None:
        opened.add(identity(found))
    return file


def read_input(path: Path, most: int, expected: str = "a file") -> bytes:
    """Read a small file. Raises BadInput as `open_input` does, and for one of more than `most` bytes."""
    with open_input(path, expected) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise BadInput(f"{path}: {size} bytes, at most {most} of {expected} expected")
            return file.read(size)
        except OSError as error:
            raise BadInput(f"{path}: cannot read the file: {error.strerror}") from None


def _check(path: Path, found: os.stat_result, expected: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise BadInput(f"{path}: {special(found)}; {expected} expected")


def special(found: os.stat_result) -> str:
    """Name the kind of a file that is not a regular one."""
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(found.st_mode), "a device")
