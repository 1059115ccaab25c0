"""A folder for an untrusted program: count its bytes, read its files safely, and remove everything."""

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
    """A temporary folder for one program.

    given: the folder with refsd's files for the program
    work:  the program's working folder inside it, empty at first
    """

    def __init__(self, prefix: str):
        self.given = Path(tempfile.mkdtemp(prefix=prefix))
        self.work = self.given / "answers"
        self.work.mkdir()
        # Outputs are read through this handle, even if the program replaces the folder.
        self._handle = os.open(self.work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def __enter__(self) -> "WorkFolder":
        return self

    def __exit__(self, *_) -> None:
        os.close(self._handle)
        with contextlib.suppress(OSError):  # leftover files do not invalidate the answer
            _remove(self.given)

    def size(self) -> int:
        """Count the bytes of all files, in subfolders too. Links are not followed; deleted open files do not count.

        Raises EngineFailure for more than 10 000 files and folders, and for folders nested too deep to open.
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
                # Otherwise the program removed or locked the folder during the scan.
        return total

    def read(self, name: str, most: int) -> bytes:
        """Read the file `name` of the working folder.

        Raises EngineFailure if it is not a plain file, is a symbolic or hard link, or has more than `most` bytes.
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
    except OSError:  # removed during the scan
        return 0


def _remove(root: Path) -> None:
    """Remove a folder with all its contents, however deeply nested.

    shutil.rmtree recurses and fails at a thousand levels. Here each nested folder is first moved to the top level,
    so that paths stay short.
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
