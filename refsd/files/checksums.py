"""Write and check the SHA-256 of a file, or of every file in a folder, in a list beside it for `sha256sum -c`."""

import hashlib
import os
import re
import stat
from pathlib import Path

_LINE = re.compile(r"([0-9a-f]{64})  (.+)")
_LARGEST = 1 << 20  # bytes; a larger file is not read as a list

# One entry per file: name, mode, inode, size, modification and change time (ns).
Stamp = tuple[tuple[str, int, int, int, int, int], ...]


def beside(path: Path) -> Path:
    """Return the path of the checksum list of a file or folder."""
    return path.with_name(f"{path.name}.sha256")


def stamp(path: Path) -> Stamp:
    """Return the file-system status of a file, or of every file in a folder; () if nothing exists at `path`.

    The value changes when a program writes to a file or replaces it.
    """
    try:
        noted = [(_name(file, path), os.lstat(file)) for file in _files(path)]
    except FileNotFoundError:
        return ()
    return tuple((n, s.st_mode, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for n, s in noted)


def write(path: Path) -> None:
    """Write the checksum list of a file or folder, and flush the list and the files to disk."""
    lines = [f"{_sha256(file)}  {_name(file, path)}\n" for file in _files(path)]
    beside(path).write_text("".join(lines))
    for written in (*path.rglob("*"), path, beside(path), path.parent):
        flush(written)


def flush(path: Path) -> None:
    """Wait until a file, or a folder's directory entries, are on disk."""
    if path.is_dir() and os.name != "posix":  # Windows flushes no folders
        return
    handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def damage(path: Path) -> str:
    """Check a file or folder against its checksum list: return the first fault in one line, or "" if all agree."""
    if not os.path.lexists(path):
        return "it is missing"
    try:
        text = beside(path).read_text() if _regular(beside(path), _LARGEST) else ""
    except (OSError, UnicodeDecodeError):
        text = ""
    lines = [_LINE.fullmatch(line) for line in text.splitlines()]
    if not lines or None in lines:
        return f"{beside(path).name} is not a list of SHA-256 checksums"
    expected = {line[2]: line[1] for line in lines if line}
    found = {_name(file, path): file for file in _files(path)}
    if found.keys() != expected.keys():
        return f"it holds other files than {beside(path).name} lists: {sorted(found.keys() ^ expected.keys())[:3]}"
    for name, file in found.items():
        if not _regular(file):
            return f"{name} is not a regular file"
        digest = _sha256(file)
        if digest != expected[name]:
            return f"{name} has SHA-256 {digest[:16]}..., expected {expected[name][:16]}..."
    return ""


def _files(path: Path) -> list[Path]:
    """Return [path] for a file or link, else everything in the folder, recursively, except folders."""
    if path.is_symlink() or not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_symlink() or not file.is_dir())


def _name(file: Path, path: Path) -> str:
    """Return the file's path relative to the folder that holds the list."""
    return file.relative_to(path.parent).as_posix()


def _regular(path: Path, largest: int | None = None) -> bool:
    status = os.lstat(path)
    return stat.S_ISREG(status.st_mode) and (largest is None or status.st_size <= largest)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
