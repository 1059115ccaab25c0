"""Write a file or a folder that the user names: whole or not at all, and never in place of what must stay.

What is written goes into a folder `.refsd-part-*` beside its place, which only this user can enter; it is flushed
to the disk and renamed. A run that is killed leaves that folder behind: the next run that writes there removes it.
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
    """What a command will write; made once its inputs are open, and before it computes."""

    def __init__(self):
        self._flags: dict[Path, str] = {}

    def add(self, flag: str, path: Path) -> None:
        """Check that `path` can be written, and make its folder.

        flag: what the command line calls it, as "--out"

        Raises BadInput: an input of the run, a place in its store of goldens, another of its outputs, a folder, a
        pipe, a device, or a place that cannot be written to.
        """
        target = _target(path)
        other = self._flags.setdefault(target, flag)
        if other != flag:
            raise BadInput(f"{path}: {other} and {flag} name the same file; name another for one of them")
        _check_folder(path, target)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write a file to, which takes its place at `path` when the block ends without an exception.

    A link is followed; a file that was there passes its permissions on. Raises BadInput as `Outputs.add` does, and
    where the disk is full.
    """
    with _in_place_of(path, _target(path)) as part:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """The same for a folder, which must not exist, or be empty: its files are written with `whole_file`."""
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
        # NumPy's tofile has no errno where a part was written.
        reason = error.strerror or f"{error}: is the disk full?"
        raise BadInput(f"{path}: cannot write the file: {reason}") from None


def _target(path: Path) -> Path:
    """Where the file really lies. Raises BadInput where no file of ours may be."""
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
    """Those of the file that is replaced, and its owner where that may be."""
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
            if error.errno != errno.EINVAL:  # a file system that cannot
                raise
        finally:
            os.close(handle)


@contextmanager
def replaced_folder(path: Path, marker: str) -> Iterator[Path]:
    """A new folder, which takes the place of `path` when the block ends without an exception.

    marker: the name of a file that the block writes in it, or nothing at all: then nothing is left at `path`.
            What is there is removed only if it is empty or has that file, so that it was written so before.

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
    """Raise BadInput where `replaced_folder` would: before a command computes for minutes."""
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
