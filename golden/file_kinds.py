"""Name a file by its first bytes, for the message of a reader that expected another kind."""

import re
from typing import NamedTuple

START = 512  # bytes that `kind` needs

LFS = "a git-lfs pointer, not the file that it stands for: run `git lfs pull` where it came from"
PAGE = "a web page, not the file: download it again, from the link of the file itself"
GGUF = "a GGUF file"
NPY = "an npy file"
ZIP = "a zip archive"
PICKLE = "a Python pickle"
SAFETENSORS = "a safetensors file"
ZEROS = "zeros from its beginning on: was the download cut short?"
JSON = "a JSON file"
ERROR = "a server's error message in JSON, not the file: download it again, and log in if it asks for that"
TEXT = "a text file"
# refsd never reads a file of these kinds.
NEVER = LFS, PAGE


class _Mark(NamedTuple):
    """Bytes at an offset, and the kind of file that they identify."""

    at: int
    bytes: bytes
    kind: str


_MARKS = (
    _Mark(0, b"version https://git-lfs.github.com/spec/", LFS),
    _Mark(0, b"GGUF", GGUF),
    _Mark(0, b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    _Mark(0, b"\xff\xd8\xff", "a JPEG picture"),
    _Mark(0, b"GIF8", "a GIF picture"),
    _Mark(8, b"WEBP", "a WebP picture"),
    _Mark(0, b"\x93NUMPY", NPY),
    _Mark(0, b"PK\x03\x04", ZIP),
    _Mark(0, b"PK\x05\x06", "an empty zip archive"),
    _Mark(0, b"\x1f\x8b", "compressed with gzip: unpack it first"),
    _Mark(0, b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first"),
    _Mark(0, b"\xfd7zXZ\x00", "compressed with xz: unpack it first"),
    _Mark(0, b"BZh", "compressed with bzip2: unpack it first"),
    _Mark(0, b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first"),
    _Mark(0, b"Rar!\x1a\x07", "a RAR archive: unpack it first"),
    _Mark(257, b"ustar", "a tar archive, as torch wrote before 0.2: unpack it, or save as safetensors"),
    _Mark(0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes: convert it to safetensors"),
    _Mark(0, b"%PDF-", "a PDF document"),
    _Mark(0, b"\x7fELF", "a Linux program"),
    _Mark(0, b"SQLite format 3\x00", "an SQLite database"),
)
_MARKUP = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype|html|head|body|\?xml|!--|error|script)", re.IGNORECASE)
_JSON = re.compile(rb'(\xef\xbb\xbf)?\s*(\{\s*("|\})|\[\s*["\[{\d\]-])')
_ERROR = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*"(error|message|detail|errors|statusCode)"\s*:', re.IGNORECASE)


def kind(start: bytes) -> str:
    """Name the kind of file that begins with these bytes, in a few words with an article; "" if unknown.

    start: its first START bytes, or all of it
    """
    if not start:
        return "an empty file: is the download complete?"
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 2**32:
        return SAFETENSORS
    for mark in _MARKS:
        if start[mark.at : mark.at + len(mark.bytes)] == mark.bytes:
            return mark.kind
    if _MARKUP.match(start):
        return PAGE
    if _ERROR.match(start):
        return ERROR
    if _JSON.match(start):
        return JSON
    if not start.strip(b"\x00"):
        return ZEROS
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return PICKLE
    return TEXT if _is_text(start) else ""


def _is_text(start: bytes) -> bool:
    try:
        text = start.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(start) - 3:  # a character may be cut at the end
            return False
        text = start[: error.start].decode("utf-8")
    return all(c.isprintable() or c in "\t\r\n" for c in text)
