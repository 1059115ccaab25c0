"""Cache compiled kernels on disk, in a private folder, and check each file before loading it.

Numba stores a function's machine code as pickles and object code. Unpickling a file can run any code that its
author chose, and LLVM aborts the process on a damaged object. So the folder must belong to the user, nobody else
may write to it, and each file's SHA-256 is checked first. A file that fails is removed, and the kernel is compiled
again.

    <function>-<line>.index            SHA-256 of the rest, then a pickle: signature -> SHA-256 of its object
    <function>-<line>.<sha256>.object  a pickle of Numba's CompileResult
    <function>-<line>.lock             held by the process that compiles the function
"""
# Numba does not export its cache classes and its compile results.
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false

import contextlib
import functools
import hashlib
import os
import pickle
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

with contextlib.suppress(ImportError):  # Windows has none
    import fcntl

from numba.core.caching import FunctionCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

_DIGEST = hashlib.sha256().digest_size


def private_folder(folder: Path) -> None:
    """Make a folder and its parents, for this user only. Raises OSError if others could put a file into it.

    The folder must belong to the user, and nobody else may write to it. Its parent may also belong to root, and may
    be writable for others if it is sticky, as /tmp is: then only an entry's owner can rename the entry.
    """
    folder.parent.mkdir(0o700, parents=True, exist_ok=True)
    folder.mkdir(0o700, exist_ok=True)
    if hasattr(os, "geteuid"):
        around = folder.parent.stat()
        _check(folder.parent, around, (0, os.geteuid()), bool(around.st_mode & stat.S_ISVTX))
        _check(folder, folder.lstat(), (os.geteuid(),), False)
    with tempfile.TemporaryFile(dir=folder):
        pass


def _check(folder: Path, found: os.stat_result, owners: tuple[int, ...], shared: bool) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(0, f"{folder} is no folder")
    if found.st_uid not in owners:
        raise OSError(0, f"{folder} belongs to user {found.st_uid}, whose code would run")
    if found.st_mode & 0o022 and not shared:
        mode = f"{stat.S_IMODE(found.st_mode):o}"
        raise OSError(0, f"others may write to {folder} (mode {mode}), and their code would run: remove it")


class KernelCache(FunctionCache):
    """The cache of one function's compiled signatures, which Numba's dispatcher asks before compiling."""

    def __init__(self, function: Callable[..., Any], folder: Path):
        code = function.__code__
        name = f"{function.__module__}.{function.__qualname__}-{code.co_firstlineno}"
        self._py_func = function
        self._stem = folder / name.replace("<", "").replace(">", "")
        self._source = _source(code.co_filename)
        self.enable()

    @property
    def cache_path(self) -> str:
        return str(self._stem.parent)

    def _load_overload(self, sig, target_context):
        if self._source is None:
            return None
        digest = self._index().get(self._key(sig, target_context.codegen()))
        pickled = _read(self._object(digest), digest) if digest else None
        return None if pickled is None else CompileResult._rebuild(target_context, *pickle.loads(pickled))

    def _save_overload(self, sig, cres):
        if self._source is None or cres.library.has_dynamic_globals:
            return
        pickled = dumps(cres._reduce())
        digest = hashlib.sha256(pickled).digest()
        index = self._index() | {self._key(sig, cres.codegen): digest}
        listed = dumps(index)
        try:
            _write(self._object(digest), pickled)
            _write(self._index_path, hashlib.sha256(listed).digest() + listed)
        except OSError as error:
            _warn_unkept(self.cache_path, str(error.strerror or error))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process at a time look for a signature and compile it: the next one finds it.

        Where files cannot be locked, several may compile the same.
        """
        with contextlib.ExitStack() as held:
            with contextlib.suppress(OSError, NameError):
                file = held.enter_context(self._stem.with_name(f"{self._stem.name}.lock").open("wb"))
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def flush(self) -> None:
        self._index_path.unlink(missing_ok=True)

    @property
    def _index_path(self) -> Path:
        return self._stem.with_name(f"{self._stem.name}.index")

    def _object(self, digest: bytes) -> Path:
        return self._stem.with_name(f"{self._stem.name}.{digest.hex()}.object")

    def _index(self) -> dict[Any, bytes]:
        listed = _read(self._index_path)
        return {} if listed is None else pickle.loads(listed)

    def _key(self, sig, codegen) -> tuple:
        return *self._index_key(sig, codegen), self._source


@functools.cache
def _source(file: str) -> bytes | None:
    """Hash the source file of a kernel; None if there is no file, as in a notebook."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).digest()
    except OSError:
        return None


def _read(path: Path, digest: bytes | None = None) -> bytes | None:
    """Read a file whose SHA-256 is `digest`, or the one at its start; remove it and return None if it is not."""
    try:
        content = path.read_bytes()
        if digest is None:
            digest, content = content[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(content).digest() == digest:
            return content
        path.unlink()
    except OSError:
        pass
    return None


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, so that concurrent writers cannot produce a partial file."""
    handle, part = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


@functools.cache
def _warn_unkept(folder: str, why: str) -> None:
    warnings.warn(f"compiled kernels cannot be kept in {folder}: {why}; the next start compiles them", stacklevel=2)
