"""A folder for a program that may do anything in it: bytes are counted, files read with care, all of it removed."""

import contextlib
import errno
import itertools
import os
import secrets
import stat
import tempfile
from pathlib import Path

from refsd.golden.engine import EngineFailure

_MAX_FILES = 10_000
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_WISH = "write a plain file of its own"


class WorkFolder:
    """
    given: where refsd puts what the program reads
    work:  the program's working folder, empty at first
    """

    def __init__(self, prefix: str):
        self.given = Path(tempfile.mkdtemp(prefix=prefix))
        self.work = self.given / "work"
        self.work.mkdir()
        # Whatever the program puts in the folder's place: its outputs are looked for in this one.
        self._handle = os.open(self.work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def __enter__(self) -> "WorkFolder":
        return self

    def __exit__(self, *_) -> None:
        os.close(self._handle)
        with contextlib.suppress(OSError):  # an answer is no worse for what cannot be removed
            _remove(self.given)

    def size(self) -> int:
        """Bytes of all files, in subfolders too. Links are not followed; files without a name are not seen.

        Raises EngineFailure for more files than a request can need, and for folders nested too deep to look into.
        """
        total = count = 0
        folders = [str(self.given)]
        while folders:
            try:
                with os.scandir(folders.pop()) as entries:
                    for entry in entries:
                        count += 1
                        if count > _MAX_FILES:
                            raise EngineFailure(f"it made more than {_MAX_FILES} files")
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
                        else:
                            total += _size(entry)
            except OSError as error:
                if error.errno == errno.ENAMETOOLONG:
                    raise EngineFailure("it nested folders deeper than a path can name") from None
                # Else the program removed or locked the folder while it was looked at.
        return total

    def read(self, name: str, most: int) -> bytes:
        """What the program wrote to work/name.

        Raises EngineFailure where that is no plain file, is another's (a link), or has more than `most` bytes.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(name, flags, dir_fd=self._handle)
        except FileNotFoundError:
            raise EngineFailure(f"it wrote no {name}") from None
        except OSError as error:
            why = f"a symbolic link: {_WISH}" if error.errno == errno.ELOOP else f"unreadable: {error.strerror}"
            raise EngineFailure(f"{name} is {why}") from None
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise EngineFailure(f"{name} is {_KINDS.get(stat.S_IFMT(found.st_mode), 'no file')}: {_WISH}")
            if found.st_nlink > 1:
                raise EngineFailure(f"{name} is a hard link to another file: {_WISH}")
            if found.st_size > most:
                raise EngineFailure(f"{name} has {found.st_size} bytes: at most {most} expected")
            with open(descriptor, "rb", closefd=False) as file:
                data = file.read(most + 1)
        finally:
            os.close(descriptor)
        if len(data) > most:
            raise EngineFailure(f"{name} grew beyond {most} bytes while it was read")
        return data


def _size(entry: os.DirEntry) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:  # removed while it was looked at
        return 0


def _remove(root: Path) -> None:
    """Remove a folder with all that is in it.

    shutil.rmtree calls itself for each level, and fails at a thousand. Here a folder inside a folder is moved to
    the top before it is emptied, so that no path grows.
    """
    unused, count = secrets.token_hex(8), itertools.count()
    while entries := list(os.scandir(root)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry)
                continue
            os.chmod(entry, 0o700)
            for inner in list(os.scandir(entry)):
                if inner.is_dir(follow_symlinks=False):
                    os.chmod(inner, 0o700)
                    os.rename(inner, root / f"{unused}-{next(count)}")
                else:
                    os.unlink(inner)
            os.rmdir(entry)
    os.rmdir(root)
