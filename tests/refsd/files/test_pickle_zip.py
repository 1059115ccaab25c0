"""The zip around torch's pickle: what is not as torch writes it is refused before anything of it is read."""

import io
import re
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from torch_files import FLOATS, state, storage, tensor, zipped

from refsd.files.formats import open_weights
from refsd.numerics.errors import BadInput

PLAIN = state(w=tensor())
GOOD = zipped(PLAIN)
END = len(GOOD) - 22  # of the central directory, where its record begins
DIRECTORY = struct.unpack_from("<I", GOOD, END + 16)[0]


@pytest.fixture
def opened(tmp_path):
    def open_content(content):
        (tmp_path / "a.ckpt").write_bytes(content)
        return open_weights(tmp_path / "a.ckpt")

    return open_content


@pytest.mark.parametrize("prefix", ["archive/", "a/", "v1-5 pruned (1)/", "名/"])
def test_a_folder_of_any_name(opened, prefix):
    content = zipped(
        PLAIN, prefix=prefix, more=[(f"{prefix}version", "3\n"), (f"{prefix}.data/serialization_id", "1")]
    )
    assert opened(content)["w"].values().sum() == 15


def zip64(content, count=None, size=None, start=None, record=None, **directory):
    """The same zip with zip64 records, as files above 4 GiB have them: the small ones are full.

    directory: name in the directory -> what its zip64 field says (bytes, packed bytes, header), where it has one
    """
    end = content.rindex(b"PK\5\6")
    n, at = struct.unpack_from("<H4xI", content, end + 10)
    entries, body = content[at:end], content[:at]
    made = b""
    while entries:
        packed, whole, name, extra, comment = struct.unpack_from("<II3H", entries, 20)
        header = struct.unpack_from("<I", entries, 42)[0]
        what = entries[46 : 46 + name]
        large = directory.get(what.decode().rpartition("/")[2], (whole, packed, header))
        field = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large)
        made += entries[:20] + b"\xff" * 8 + struct.pack("<3H", name, len(field), 0) + entries[34:42] + b"\xff" * 4
        made += what + field
        entries = entries[46 + name + extra + comment :]
    numbers = (n if count is None else count, len(made) if size is None else size, at if start is None else start)
    here = len(body) + len(made)
    full = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, numbers[0], *numbers)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, here if record is None else record, 1)
    return body + made + full + locator + b"PK\5\6" + b"\0" * 4 + b"\xff" * 12 + b"\0\0"


def test_zip64(opened):
    content = zip64(GOOD)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
    assert opened(content)["w"].values().sum() == 15


def patched(at, code, *values, content=GOOD):
    raw = struct.pack(code, *values)
    return content[:at] + raw + content[at + len(raw) :]


def twice(name):
    """Two entries that differ in a letter, which is then put right."""
    content = zipped(PLAIN, more=[("archive/" + "?" * len(name), FLOATS)])
    return content.replace(b"archive/" + b"?" * len(name), b"archive/" + name.encode())


def renamed(name):
    assert len(name) == len("archive/data/x")
    content = zipped(PLAIN, more=[("archive/data/x", FLOATS)])
    return content.replace(b"archive/data/x", name)


def overlapping():
    """The first storage holds the header of the second."""
    header = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 24, 24, 14, 0) + b"archive/data/1"
    content = zipped(PLAIN, [("0", FLOATS + header + FLOATS), ("1", FLOATS)])
    return patched(content.rindex(b"PK\1\2") + 42, "<I", content.index(header), content=content)


BOMB = zipped(PLAIN, [("0", b"\0" * 2**22)], method=zipfile.ZIP_DEFLATED)
WRONG = {
    "no zip behind its first bytes": (b"PK\3\4" + b"\0" * 100, "no end of a zip's directory"),
    "bytes after the end": (GOOD + b"\0", "1 bytes after its end"),
    "bytes before the begin": (GOOD[:4] + GOOD, "its directory of 2 entries"),
    "a comment cut short": (patched(END + 20, "<H", 9), "after its end"),
    "several files": (patched(END + 4, "<H", 1), "a zip in several files"),
    "entries elsewhere": (patched(END + 8, "<H", 1), "a zip in several files"),
    "more entries": (patched(END + 8, "<HH", 3, 3), "within an entry"),
    "fewer entries": (patched(END + 8, "<HH", 1, 1), "bytes more than its 1 entries"),
    "65535 entries": (patched(END + 8, "<HH", 65535, 65535), "65535 entries"),
    "a directory beyond the file": (patched(END + 16, "<I", 2**32 - 2), "at byte 4294967294"),
    "a giant directory": (patched(END + 12, "<I", 2**32 - 2), "4294967294 bytes"),
    "a directory elsewhere": (patched(END + 16, "<I", 4), "ends at byte"),
    "another sign in the directory": (patched(DIRECTORY, "<I", 0), "no entry of the directory"),
    "a giant name": (patched(DIRECTORY + 28, "<H", 65535), "no entry of the directory"),
    "a giant comment": (patched(DIRECTORY + 32, "<H", 65535), "no entry of the directory"),
    "a header beyond the file": (patched(DIRECTORY + 42, "<I", 2**32 - 2), "is not at byte 4294967294"),
    "a header elsewhere": (patched(DIRECTORY + 42, "<I", 8), "is not at byte 8"),
    "another name in the header": (patched(31, "<B", ord("X")), 'data.pkl" is not at byte 0'),
    "a giant extra field": (patched(28, "<H", 65535), "is not at byte 0"),
    "giant": (
        patched(DIRECTORY + 20, "<II", 2**32 - 2, 2**32 - 2),
        r'data\.pkl" has 4294967294 bytes, the file has room for \d+',
    ),
    "a size and another": (patched(DIRECTORY + 24, "<I", 7), "is not compressed, but has"),
    "full without a zip64 field": (patched(DIRECTORY + 20, "<I", 2**32 - 1), "lacks its zip64 field"),
    "a zip64 field that is too short": (zip64(GOOD, **{"data.pkl": (1, 1)}), "lacks its zip64 field"),
    "a zip64 size of 2^63": (zip64(GOOD, **{"data.pkl": (2**63, 2**63, 0)}), "9223372036854775808 bytes"),
    "a zip64 header at 2^63": (zip64(GOOD, **{"data.pkl": (9, 9, 2**63)}), "not at byte 9223372036854775808"),
    "a zip64 count of 2^63": (zip64(GOOD, count=2**63), "directory of 9223372036854775808 entries"),
    "a zip64 directory of 2^63": (zip64(GOOD, size=2**63), "9223372036854775808 bytes at byte"),
    "a zip64 directory at 2^63": (zip64(GOOD, start=2**63), "at byte 9223372036854775808"),
    "a zip64 record at 2^63": (zip64(GOOD, record=2**63), "no zip64 record at byte 9223372036854775808"),
    "a zip64 record that says something else": (
        patched(len(zip64(GOOD)) - 12, "<H", 1, content=zip64(GOOD)),
        "its zip64 record says 2, the record after it 1",
    ),
    "a name twice": (twice("data/0"), r'the zip has "archive/data/0" twice'),
    "the pickle twice": (twice("data.pkl"), r'the zip has "archive/data\.pkl" twice'),
    "..": (renamed(b"archive/../../"), r'has "archive/../../", which steps out'),
    "an absolute path": (renamed(b"/etc/cron.d/xy"), r'has "/etc/cron.d/xy", which steps out'),
    "a backslash": (renamed(b"..\\..\\data\\xyz"), "which steps out"),
    "a name with a zero": (renamed(b"archive/data/\0"), "which steps out"),
    "a name that is not UTF-8": (renamed(b"archive/data/\xff"), "a name that is not UTF-8"),
    "an overlap": (overlapping(), r'"archive/data/1" overlaps the entry before it'),
    "no pickle": (zipped(PLAIN).replace(b"data.pkl", b"data.txt"), "a zip with 0 <folder>/data.pkl"),
    "two pickles": (zipped(PLAIN, more=[("b/data.pkl", PLAIN)]), "a zip with 2 <folder>/data.pkl"),
    "a pickle without a folder": (zipped(PLAIN, prefix=""), "a zip with 0 <folder>/data.pkl"),
    "TorchScript": (zipped(PLAIN, more=[("archive/constants.pkl", b"x")]), "a TorchScript archive"),
    "a compressed pickle": (zipped(PLAIN, method=zipfile.ZIP_DEFLATED), r'data\.pkl" is compressed'),
    "a compressed bomb": (BOMB, "is compressed"),
    "a storage that is not there": (zipped(PLAIN, [("1", FLOATS)]), 'its storage "0" is not in the file'),
    "a storage cut short": (zipped(PLAIN, [("0", FLOATS[:-1])]), r'its storage "0" has 23 bytes, 6 elements of 4'),
    "a pickle that is longer": (zipped(PLAIN + b"N."), "goes on after its end"),
    "an empty pickle": (zipped(b""), "is cut short"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_torch_does_not_write(opened, tmp_path, case):
    content, says = WRONG[case]
    tracemalloc.start()
    with pytest.raises(BadInput) as error:
        opened(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    message = str(error.value)
    assert message.startswith(f"{tmp_path / 'a.ckpt'}: ")
    assert re.search(says, message.removeprefix(f"{tmp_path / 'a.ckpt'}: ")), message
    assert message.isprintable()
    assert peak < 2**20
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]


def test_only_what_is_read_must_be_stored(opened):
    """A compressed entry that no tensor asks for costs nothing, and is not looked at."""
    out = io.BytesIO(GOOD)
    with zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/notes.txt", b"\0" * 2**20)
    assert opened(out.getvalue())["w"].values().sum() == 15


@pytest.mark.parametrize(
    ("bit", "says"),
    [
        (0, "is encrypted"),
        (5, "is compressed patched data"),
        (6, "is strongly encrypted"),
        (13, "is hidden by masked headers"),
    ],
)
@pytest.mark.parametrize("sign", [b"PK\3\4", b"PK\1\2"])
def test_bytes_that_are_not_the_content_are_named(opened, sign, bit, says):
    """In the directory or in the local header alone, of the pickle or of a storage."""
    start = -1
    for name in ("data.pkl", "data/0"):
        start = GOOD.index(sign, start + 1)
        at = start + (6 if sign == b"PK\3\4" else 8)
        content = patched(at, "<H", struct.unpack_from("<H", GOOD, at)[0] | 1 << bit)
        with pytest.raises(BadInput, match=f'"archive/{name}" {says}, and torch stores plain bytes'):
            opened(content)


def test_storages_share_nothing_but_what_they_say(opened):
    content = zipped(
        state(v=tensor(of=storage("0")), w=tensor(of=storage("1"))),
        [("0", FLOATS), ("1", np.ones(6, np.float32).tobytes())],
    )
    weights = opened(content)
    assert (weights["v"].values().sum(), weights["w"].values().sum()) == (15, 6)


def test_a_storage_is_held_against_its_crc_when_it_is_read(opened, tmp_path):
    """Headers alone do not tell: the other storage is good, and `info` reads neither."""
    content = zipped(state(v=tensor(of=storage("1")), w=tensor()), [("0", FLOATS), ("1", FLOATS[:-1] + b"\x42")])
    at = content.index(FLOATS) + 5
    weights = opened(patched(at, "<B", content[at] ^ 1, content=content))
    assert weights["v"].values().shape == (2, 3)
    for name in ("w", "w"):
        with pytest.raises(
            BadInput, match=r'a\.ckpt: "data/0" is damaged: its CRC-32 is \w{8}, the zip says \w{8}'
        ):
            weights[name]


def test_a_view_of_a_damaged_storage_is_refused_too(opened):
    content = zipped(state(w=tensor(size=(3, 2), stride=(1, 3))))
    at = content.index(FLOATS)
    with pytest.raises(BadInput, match='"data/0" is damaged'):
        opened(patched(at, "<B", 1, content=content))["w"]


def test_the_pickle_is_held_against_its_crc(opened):
    at = GOOD.index(b"cpu")
    with pytest.raises(BadInput, match=r'"archive/data\.pkl" is damaged'):
        opened(patched(at, "<3s", b"gpu"))


def test_a_file_of_which_torch_computed_no_crc(opened):
    """torch.serialization.set_crc32_options(False) writes zeros."""
    content = bytearray(GOOD)
    for sign, at in ((b"PK\1\2", 16), (b"PK\3\4", 14)):
        start = content.find(sign)
        while start >= 0:
            content[start + at : start + at + 4] = bytes(4)
            start = content.find(sign, start + 1)
    assert opened(bytes(content))["w"].values().sum() == 15
    one = patched(DIRECTORY + 16, "<I", 0)
    with pytest.raises(BadInput, match="the zip says 00000000"):
        opened(one)["w"]


OTHER_ZIPS = {
    "a safetensors file in it": (
        [("x/model.safetensors", b"")],
        'a zip that holds "x/model.safetensors"',
    ),
    "arrays": ([("a.npy", b""), ("b.npy", b"")], "an npz, NumPy's zip of arrays; a checkpoint expected"),
    "a document": ([("[Content_Types].xml", b""), ("word/document.xml", b"")], "a document of an office program"),
    "anything": ([("a.txt", b"")], "a zip with 0 <folder>/data.pkl among its 1 files"),
}


@pytest.mark.parametrize("case", OTHER_ZIPS)
def test_a_zip_of_something_else_is_named(opened, case):
    entries, says = OTHER_ZIPS[case]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in entries:
            archive.writestr(name, content)
    with pytest.raises(BadInput, match=says):
        opened(out.getvalue())
