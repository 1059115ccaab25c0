"""What a file is, by its first bytes."""

import gzip
import io
import json
import pickle
import zipfile

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save

from refsd.golden.file_kinds import (
    ERROR,
    GGUF,
    JSON,
    LFS,
    NPY,
    PAGE,
    PICKLE,
    SAFETENSORS,
    START,
    TEXT,
    ZEROS,
    ZIP,
    kind,
)

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 4265380512\n"


def picture(format):
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, format)
    return file.getvalue()


def npy():
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


def zipped():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a", "b")
    return file.getvalue()


KINDS = {
    "git-lfs": (POINTER, LFS),
    "html": (b"<!DOCTYPE html>\n<html><head>", PAGE),
    "html, in small letters, after a space": (b"\n  <html lang=en>", PAGE),
    "html with a byte order mark": (b"\xef\xbb\xbf<HTML>", PAGE),
    "an answer of a store": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code>', PAGE),
    "png": (picture("PNG"), "a PNG picture"),
    "jpeg": (picture("JPEG"), "a JPEG picture"),
    "gif": (picture("GIF"), "a GIF picture"),
    "webp": (picture("WEBP"), "a WebP picture"),
    "json": (json.dumps({"name": "error"}).encode(), JSON),
    "a server's error": (json.dumps({"error": "Invalid username or password."}).encode(), ERROR),
    "json list": (b"[1, 2]", JSON),
    "an empty object": (b" {} ", JSON),
    "npy": (npy(), NPY),
    "zip": (zipped(), ZIP),
    "gzip": (gzip.compress(b"a"), "compressed with gzip: unpack it first"),
    "pickle": (pickle.dumps({}, 2), PICKLE),
    "safetensors": (save({"a": np.zeros(3)}), SAFETENSORS),
    "gguf": (b"GGUF\3\0\0\0", GGUF),
    "nothing": (b"", "an empty file: is the download complete?"),
    "zeros": (bytes(600), ZEROS),
    "text": ("a cat, кот".encode(), TEXT),
    "text, its last character cut": ("a cat, \N{CAT FACE}".encode()[:-1], TEXT),
    "text, a character cut before its end": (b"a cat\xf0 cat", ""),
    "text, an end of another character": (b"a cat\xf0cat", ""),
    "zstd": (b"\x28\xb5\x2f\xfd\0\0", "compressed with zstd: unpack it first"),
    "xz": (b"\xfd7zXZ\0\0\0", "compressed with xz: unpack it first"),
    "bzip2": (b"BZh91AY&SY", "compressed with bzip2: unpack it first"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\4", "a 7z archive: unpack it first"),
    "rar": (b"Rar!\x1a\x07\1\0", "a RAR archive: unpack it first"),
    "hdf5": (b"\x89HDF\r\n\x1a\n\0\0", "an HDF5 file, as Keras writes: convert it to safetensors"),
    "pdf": (b"%PDF-1.7\xb5", "a PDF document"),
    "elf": (b"\x7fELF\2\1\1\0", "a Linux program"),
    "sqlite": (b"SQLite format 3\0\x10\0", "an SQLite database"),
    "an empty zip": (b"PK\x05\x06" + bytes(18), "an empty zip archive"),
    "a length of 2^32": (b"\0\0\0\0\1\0\0\0{}", ""),
    "a length of which the last byte is set": (b"\x02\0\0\0\0\0\0\1{}", ""),
    "a tar": (b"folder/".ljust(257, b"\0") + b"ustar\0", "a tar archive"),
    "noise": (bytes([200, 1, 2, 255, 7, 9, 0, 3, 3]), ""),
}


@pytest.mark.parametrize("case", KINDS)
def test_kinds(case):
    content, expected = KINDS[case]
    found = kind(content[:START])
    assert found.startswith(expected) and bool(found) == bool(expected)
    assert found.isprintable()


def test_a_safetensors_file_is_one_whatever_its_names_are():
    """A tar's mark may stand in a name, just where a tar has it."""
    raw = save({"w" * 300: np.zeros(1)})
    at = raw.index(b"w" * 300)
    assert at < 257 < at + 300
    assert kind(raw[:257] + b"ustar" + raw[262:START]) == SAFETENSORS


def test_a_letter_that_is_cut_at_the_end_is_still_text():
    raw = ("a" * (START - 1) + "к").encode()[:START]
    assert kind(raw) == TEXT
