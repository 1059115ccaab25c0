"""Pack goldens into one file: a tar with the same bytes for the same goldens, for a release or a CI's cache."""

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path

from refsd.golden.origins import SUMS
from refsd.golden.output_file import whole_file
from refsd.golden.store import Store


def pack(store: Store, names: Iterable[str], out: Path, advance: Callable[[int], None] = lambda n: None) -> str:
    """Write the goldens of these cases to a tar -> its SHA-256. Raises BadInput for a missing or corrupt one.

    SHA256SUMS comes first, then files in the order of their names, without owners and dates. Unpacked, the tar is a
    store.

    advance: called with the size of each golden in bytes
    """
    files: dict[str, Path] = {}
    for name in sorted(names):
        manifest = store.get(name).manifest
        for path in (store.manifest_path(name), store.blob_path(manifest.blob)):
            files[path.relative_to(store.root).as_posix()] = path
        advance(manifest.bytes)
    sums = "".join(f"{_sha256(files[name])}  {name}\n" for name in sorted(files))
    with whole_file(out) as part:
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
            _add(tar, SUMS, sums.encode())
            for name in sorted(files):
                _add(tar, name, files[name].read_bytes())
        return _sha256(part)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
