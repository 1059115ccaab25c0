"""Write a file or a folder that the user names: completely or not at all, and never over an input of the run.

The data go into a folder `.refsd-part-*` beside the target, which only this user can enter; they are flushed to the
disk and renamed. A killed run leaves that folder behind: the next run that writes there removes it.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refsd.golden.input_file import identity, input_folder, is_input, special
from refsd.golden.scratch import Scratch
from refsd.numerics.errors import BadInput

_PREFIX = ".refsd-part-"


class Outputs:
    """The files that a command will write; create it once the inputs are open, and before computing."""

    def __init__(self):
        self._flags: dict[Path, str] = {}

    def add(self, flag: str, path: Path) -> None:
        """Check that `path` can be written, and make its folder.

        flag: the command-line option, as "--out"

        Raises BadInput for an input of the run, a place in its store of goldens, another of its outputs, a folder,
        a pipe, a device, or a place that cannot be written to.
        """
        target = _target(path)
        other = self._flags.setdefault(target, flag)
        if other != flag:
            raise BadInput(f"{path}: {other} and {flag} name the same file; name another for one of them")
        _check_folder(path, target)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path to write a file to, which replaces `path` when the block ends without an exception.

    Links are followed, and the permissions of an existing file are kept. Raises BadInput as `Outputs.add` does, and
    where the disk is full.
    """
    with _in_place_of(path, _target(path)) as part:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Do the same for a folder, which must not exist, or be empty. Write its files with `whole_file`."""
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise BadInput(f"{path}: exists; remove it, or name a folder that does not exist")
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}") from None
    with _in_place_of(path, target) as part:
        part.mkdir()
        yield part


def write_file(path: Path, content: bytes) -> None:
    """Write all of a file. Raises BadInput as `whole_file` does."""
    with whole_file(path) as part:
        part.write_bytes(content)


@contextmanager
def _in_place_of(path: Path, target: Path) -> Iterator[Path]:
    _check_folder(path, target)
    try:
        with Scratch(target.parent, _PREFIX) as folder:
            part = folder / target.name
            yield part
            _keep_permissions(part, target)
            os.replace(part, target)
            _flush_folder(target.parent)
    except OSError as error:
        # NumPy's tofile raises without an errno after writing a part.
        reason = error.strerror or f"{error}: is the disk full?"
        raise BadInput(f"{path}: cannot write the file: {reason}") from None


def _target(path: Path) -> Path:
    """Return the path without links. Raises BadInput if refsd must not write there."""
    if str(path) == "-":
        raise BadInput("-: refsd writes files, and no file to standard output: name one")
    try:
        target = Path(os.path.realpath(path))
        if (folder := input_folder(target)) is not None:
            raise BadInput(f"{path}: in {folder}, the store of this very run; name a file elsewhere")
        if not os.path.lexists(target):
            return target
        found = target.stat()
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}") from None
    except ValueError:
        raise BadInput(f"{str(path)!a}: no file has a NUL in its name") from None
    if not stat.S_ISREG(found.st_mode):
        raise BadInput(f"{path}: {special(found)}; refsd writes whole files only: name a file")
    if is_input(found):
        raise BadInput(f"{path}: an input of this very run, which would be lost; name another file")
    if identity(found) in _standard_streams():
        raise BadInput(f"{path}: where this command's own output goes; name another file")
    if not os.access(target, os.W_OK):
        raise BadInput(f"{path}: cannot be written: it is write-protected; name another file")
    return target


def _standard_streams() -> set[tuple[int, int]]:
    found = set()
    for handle in range(3):
        with contextlib.suppress(OSError):
            found.add(identity(os.fstat(handle)))
    return found


def _check_folder(path: Path, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path}: its folder cannot be made: {error.strerror}") from None
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise BadInput(f"{path}: its folder is write-protected; name another")


def _keep_permissions(part: Path, target: Path) -> None:
    """Copy the permissions of the file that is replaced, and its owner where that is allowed."""
    with contextlib.suppress(FileNotFoundError):
        found = target.stat()
        if hasattr(os, "chown"):
            with contextlib.suppress(PermissionError):
                os.chown(part, found.st_uid, found.st_gid)
        os.chmod(part, found.st_mode & 0o777)


def _flush_folder(folder: Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that cannot flush a folder
                raise
        finally:
            os.close(handle)


@contextmanager
def replaced_folder(path: Path, marker: str) -> Iterator[Path]:
    """Yield a new folder, which replaces `path` when the block ends without an exception.

    marker: the name of a file that the block writes in it. A folder at `path` is removed only if it is empty or has
            that file, so that refsd wrote it. If the block writes nothing, nothing is left at `path`.

    Raises BadInput for anything else there, for a link, and where nothing can be written.
    """
    target = Path(os.path.abspath(path))
    _check_replaceable(path, target, marker)
    _check_folder(path, target)
    try:
        scratch = Scratch(target.parent, _PREFIX)
        part = scratch.path / "new"
        part.mkdir()
    except OSError as error:
        raise BadInput(f"{path}: cannot write the folder: {error.strerror or error}") from None
    with scratch as folder:
        yield part
        _check_replaceable(path, target, marker)
        try:
            if os.path.lexists(target):
                os.rename(target, folder / "old")
            if any(part.iterdir()):
                os.rename(part, target)
            _flush_folder(target.parent)
        except OSError as error:
            raise BadInput(f"{path}: cannot write the folder: {error.strerror or error}") from None


def check_replaceable(path: Path, marker: str) -> None:
    """Raise BadInput where `replaced_folder` would. Call this before a command computes for minutes."""
    target = Path(os.path.abspath(path))
    _check_replaceable(path, target, marker)
    _check_folder(path, target)


def _check_replaceable(path: Path, target: Path, marker: str) -> None:
    if (folder := input_folder(Path(os.path.realpath(target)))) is not None:
        raise BadInput(f"{path}: in {folder}, the store of this very run; name a folder elsewhere")
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise BadInput(f"{path}: {'a link' if target.is_symlink() else 'no folder'}; name a folder")
    try:
        empty = not any(target.iterdir())
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    known = target / marker
    if not empty and (known.is_symlink() or not known.is_file()):
        raise BadInput(f"{path}: not empty, and not written by refsd; name another folder")
