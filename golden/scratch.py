"""Temporary folders; if a process is killed, the next run removes its folders."""

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing is locked there, so nothing is known to be abandoned
    fcntl = None

MAKING = ".making-"  # prefix of a folder in which an entry of a cache is being made


class Scratch:
    """A new folder in `parent`, locked while this object lives and removed when it ends.

    The kernel drops the lock of a killed process, whatever its process id or container was.

    path: the folder
    """

    def __init__(self, parent: Path, prefix: str = ""):
        sweep(parent, prefix)
        while True:
            with contextlib.suppress(FileNotFoundError):  # another process removed one before it was locked
                parent.mkdir(parents=True, exist_ok=True)
                self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
                handle = lock(self.path)
                if self.path.exists():
                    break
                _unlock(handle)
        self.close = weakref.finalize(self, _end, self.path, handle)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_) -> None:
        self.close()


def lock(folder: Path, wait: bool = True) -> int | None:
    """Lock a folder for this process -> a handle; closing it unlocks. None where the file system has no locks.

    Raises BlockingIOError if another process has the lock and `wait` is false.
    """
    if fcntl is None:
        return None
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return handle


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock; wait for the process that has it."""
    handle = lock(folder)
    try:
        yield
    finally:
        _unlock(handle)


def abandoned(parent: Path, prefix: str = "") -> Iterator[Path]:
    """Yield the scratch folders of dead processes, each locked meanwhile, and stray files among them."""
    for path in sorted(parent.glob(f"{prefix}*")):
        try:
            if hasattr(os, "getuid") and path.lstat().st_uid != os.getuid():
                continue
            handle = lock(path, wait=False) if path.is_dir() and not path.is_symlink() else -1
        except OSError:  # held, or gone, or not ours to open
            continue
        if handle is None:
            continue
        try:
            yield path
        finally:
            _unlock(handle)


def sweep(parent: Path, prefix: str = "") -> None:
    """Remove what killed processes left."""
    for path in abandoned(parent, prefix):
        remove(path)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it, as far as that is possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _unlock(handle: int | None) -> None:
    if handle is not None and handle >= 0:
        os.close(handle)


def _end(path: Path, handle: int | None) -> None:
    remove(path)
    _unlock(handle)
