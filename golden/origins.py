"""Origins of goldens that a store lacks: a packed file, or a folder at any URL that fsspec reads.

A packed file is a tar without compression: SHA256SUMS, then the files of a store. It is never unpacked: members are
read by their exact names.
"""

import hashlib
import tarfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from refsd.golden.input_file import open_input
from refsd.golden.output_file import whole_file
from refsd.golden.wording import how_to_install
from refsd.numerics.errors import BadInput

SUMS = "SHA256SUMS"
_HASH = "#sha256="
_EXPECTED = "goldens packed by `refsd golden pack`"
_CHUNK = 1 << 20
_LARGEST_SUMS = 1 << 26
# File systems of fsspec that show a new object when all of it is there.
_WHOLE = {"s3", "gs", "abfs", "az", "oci", "memory"}
# File systems that nobody writes.
_READ_ONLY = {"http", "https", "github", "zip", "tar"}


class Origin(Protocol):
    """A source of goldens. what: the file or URL, for messages"""

    what: str

    def paths(self) -> Iterable[str]:
        """Return the paths of all files, relative to the store: "cases/conv2d/f32/a.json"."""
        ...

    def read(self, path: str) -> bytes | None:
        """Return the bytes of a file; None if there is none. Raises BadInput if it cannot be read or is corrupt."""
        ...


class PackedFile:
    """A packed store. Raises BadInput for any other file."""

    def __init__(self, path: Path, what: str = ""):
        self.what, self._path = what or str(path), path
        try:
            with open_input(path, _EXPECTED) as file, tarfile.TarFile(fileobj=file) as tar:
                self._members = {m.name: (m.offset_data, m.size) for m in tar if m.isreg()}
            if self._members[SUMS][1] > _LARGEST_SUMS:
                raise ValueError(f"{SUMS} has {self._members[SUMS][1]} bytes, at most {_LARGEST_SUMS} expected")
            lines = self._content(SUMS).decode().splitlines()
            self._sums = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
        except (tarfile.TarError, KeyError, ValueError, OSError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise BadInput(f"{self.what}: not {_EXPECTED}: {reason}") from None

    def paths(self) -> list[str]:
        return list(self._sums)

    def read(self, path: str) -> bytes | None:
        if path not in self._sums:
            return None
        try:
            data = self._content(path)
        except (KeyError, OSError) as error:
            raise BadInput(f"{self.what}: {path}: cannot be read: {' '.join(str(error).split())}") from None
        if hashlib.sha256(data).hexdigest() != self._sums[path]:
            raise BadInput(f"{self.what}: {path}: {len(data)} bytes that do not have the SHA-256 in {SUMS}")
        return data

    def _content(self, name: str) -> bytes:
        at, size = self._members[name]
        with open_input(self._path, _EXPECTED) as file:
            file.seek(at)
            return file.read(size)


class UrlFolder:
    """A store's folder at a URL: fs and root as fsspec gives them.

    It can be written where the file system can be. Readers see a file whole or not at all: object stores do so
    themselves; elsewhere a file is written under tmp/ and moved to its name.
    """

    def __init__(self, fs: Any, root: str, what: str):
        self.what, self._fs, self._root = what, fs, root.rstrip("/")

    def paths(self) -> Iterator[str]:
        found = _reading(self.what, lambda: self._fs.find(self._root)) or []
        return (path[len(self._root) :].lstrip("/") for path in found)

    def read(self, path: str) -> bytes | None:
        return _reading(self.what, lambda: self._fs.cat_file(f"{self._root}/{path}"))

    @property
    def writable(self) -> bool:
        """False for a kind of file system that nobody writes."""
        return not _protocols(self._fs) & _READ_ONLY

    def has(self, path: str) -> bool:
        """Return True if there is such a file now."""
        return bool(_reading(self.what, lambda: self._fs.exists(f"{self._root}/{path}")))

    def write(self, path: str, data: bytes) -> None:
        """Write a file. Raises BadInput if it cannot be written."""
        try:
            self._write(f"{self._root}/{path}", data)
        except Exception as error:  # each file system has its own exceptions
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise BadInput(f"{self.what}: {path}: cannot be written: {reason}") from None

    def _write(self, place: str, data: bytes) -> None:
        if _protocols(self._fs) & _WHOLE:
            self._fs.pipe_file(place, data)
            return
        part = f"{self._root}/tmp/{uuid.uuid4().hex}"
        for folder in (part, place):
            self._fs.makedirs(folder.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(part, data)
        self._fs.mv(part, place)


def is_remote(store: str) -> bool:
    """Return True if a store is a URL or a packed file, not a folder."""
    return "://" in store or (store.partition(_HASH)[0].endswith(".tar") and not Path(store).is_dir())


def open_origin(store: str, downloads: Path) -> Origin:
    """Open a packed file, or what is at a URL.

    store:     FILE.tar, URL, URL/FILE.tar; a packed file may end in #sha256=DIGEST, which is then checked
    downloads: the folder for packed files that are downloaded

    Raises BadInput for what cannot be read, and for a file with another SHA-256.
    """
    address, _, digest = store.partition(_HASH)
    if "://" not in address:
        _check_digest(Path(address), digest, store)
        return PackedFile(Path(address), address)
    fs, path = _filesystem(address)
    if not address.endswith(".tar"):
        return UrlFolder(fs, path, address)
    kept = downloads / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}.tar"
    if not digest or not kept.exists() or _digest(kept) != digest:
        _download(fs, path, address, kept)
    _check_digest(kept, digest, store)
    return PackedFile(kept, address)


def _protocols(fs: Any) -> set[str]:
    return {fs.protocol} if isinstance(fs.protocol, str) else {*fs.protocol}


def _filesystem(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise BadInput(f"{url}: fsspec reads URLs: {how_to_install('remote')}") from None
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = " ".join(str(error).split()) or "a package of fsspec"
        which = f"the extra remote has what http needs, s3 what s3 needs: {how_to_install('s3')}"
        raise BadInput(f"{url}: {package}; {which}") from None
    except ValueError as error:
        raise BadInput(f"{url}: {' '.join(str(error).split())}") from None


def _download(fs: Any, path: str, url: str, place: Path) -> None:
    def copy() -> None:
        with fs.open(path, "rb") as source, whole_file(place) as part, open(part, "wb") as file:
            while chunk := source.read(_CHUNK):
                file.write(chunk)

    place.parent.mkdir(parents=True, exist_ok=True)
    missing = object()
    if _reading(url, lambda: copy() or missing) is None:
        raise BadInput(f"{url}: no such file")


def _reading(what: str, read: Callable[[], Any]) -> Any:
    """Return what `read` returns; None for a file that does not exist. Any other exception becomes BadInput."""
    try:
        return read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"{what}: cannot be read: {' '.join(str(error).split())[:200] or type(error).__name__}"
        ) from None


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open_input(path, _EXPECTED) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _check_digest(path: Path, digest: str, store: str) -> None:
    if digest and (found := _digest(path)) != digest:
        raise BadInput(f"{store}: the file has the SHA-256 {found}: it was replaced, or damaged on its way")
