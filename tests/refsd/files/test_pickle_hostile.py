"""Whatever a pickle asks for, it is told no by name, in one line; nothing of it runs, and no memory is taken."""

import builtins
import importlib
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import tracemalloc

import pytest
from torch_files import FLOATS, V2, legacy, named, numbers, state, storage, tensor, text, zipped

from refsd.cli import main
from refsd.files.formats import open_weights
from refsd.numerics.errors import BadInput

SYSTEM = named("os", "system")
ARGUMENTS = b"(" + text("touch executed") + b"t"
OPAQUE = named("argparse", "Namespace")


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """What a pickle could reach notes that it was."""
    calls = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "system", lambda *a: calls.append("os.system"))
    return calls


@pytest.fixture
def refusal(tmp_path, ran):
    """Opens the file; gives the one line that refuses it."""

    def refuse(content, name="a.ckpt", most=2**21):
        path = tmp_path / name
        path.write_bytes(content)
        tracemalloc.start()
        try:
            with pytest.raises(BadInput) as error:
                open_weights(path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        message = str(error.value)
        assert message.startswith(f"{path}: ")
        said = message.removeprefix(f"{path}: ")
        assert said.isprintable()
        assert len(said) < 400
        assert peak < most + 20 * len(content)
        assert ran == []
        assert sorted(p.name for p in tmp_path.iterdir()) == [name]
        return said

    return refuse


def put(opcodes):
    """A state dict in which the opcodes stand between two good tensors."""
    return V2 + b"}(" + text("v") + tensor() + text("w") + opcodes + text("x") + tensor() + b"u."


EVIL = {
    "GLOBAL": (SYSTEM, r"asks for os\.system \(GLOBAL at byte \d+\): nothing of it was run"),
    "REDUCE": (SYSTEM + ARGUMENTS + b"R", r"asks for os\.system \(GLOBAL"),
    "posix": (named("posix", "system") + ARGUMENTS + b"R", r"asks for posix\.system \(GLOBAL"),
    "eval": (named("builtins", "eval") + ARGUMENTS + b"R", r"asks for builtins\.eval \(GLOBAL"),
    "python 2's eval": (named("__builtin__", "eval") + ARGUMENTS + b"R", r"asks for __builtin__\.eval"),
    "getattr": (named("builtins", "getattr"), r"asks for builtins\.getattr"),
    "__import__": (named("builtins", "__import__"), r"asks for builtins\.__import__"),
    "torch.load": (named("torch", "load"), r"asks for torch\.load"),
    "a function of torch": (named("torch.hub", "load"), r"asks for torch\.hub\.load"),
    "a whole model": (named("torch.nn.modules.linear", "Linear"), r"asks for torch\.nn\.modules\.linear\.Linear"),
    "a dunder of what is allowed": (named("collections", "OrderedDict.__init__"), r"OrderedDict\.__init__"),
    "STACK_GLOBAL": (b"\x8c\2os\x8c\6system\x93", r"asks for os\.system \(STACK_GLOBAL"),
    "STACK_GLOBAL of numbers": (b"K\1K\2\x93", r"asks for a name made of a value of type int"),
    "STACK_GLOBAL of nothing": (b"(\x93", r"empty stack \(STACK_GLOBAL"),
    "INST": (b"(" + text("x") + b"ios\nsystem\n", r"asks for os\.system \(INST"),
    "OBJ": (b"(" + OPAQUE + text("x") + b"o", r"an opcode that torch does not write \(OBJ"),
    "NEWOBJ": (SYSTEM + ARGUMENTS + b"\x81", r"asks for os\.system"),
    "NEWOBJ of a function": (named("torch._utils", "_rebuild_tensor_v2") + b")\x81", r"which is a function"),
    "NEWOBJ of no class": (b"K\1)\x81", r"calls a value of type int .* \(NEWOBJ"),
    "NEWOBJ_EX": (SYSTEM + b")}\x92", r"asks for os\.system"),
    "NEWOBJ_EX of a function": (named("torch", "Size") + b")}\x92", r"object of torch\.Size with keywords"),
    "NEWOBJ_EX of nothing": (b"(}\x92", r"with keywords \(NEWOBJ_EX"),
    "BUILD of a class": (OPAQUE + b"}b", r"gives a state to argparse\.Namespace \(BUILD"),
    "BUILD of a tensor": (tensor() + b"}b", r"gives a state to a value of type Tensor"),
    "BUILD of a text": (text("x") + b"}b", r"gives a state to a value of type str"),
    "REDUCE of a text": (text("os.system") + ARGUMENTS + b"R", r"calls a value of type str with"),
    "REDUCE without a tuple": (named("torch", "Size") + b"]R", r"calls torch\.Size with a value of type list"),
    "REDUCE of a dtype": (named("torch", "float32") + b")R", r"asks|calls torch\.float32"),
    "REDUCE of a result": (OPAQUE + b")R)R", r"calls argparse\.Namespace"),
    "EXT1": (b"\x82\7", r"extension code 7 \(EXT1"),
    "EXT2": (b"\x83\7\1", r"extension code 263 \(EXT2"),
    "EXT4": (b"\x84\xff\xff\xff\x7f", r"extension code 2147483647 \(EXT4"),
    "PERSID": (b"Pos.system\n", r'persistent id "os\.system", a storage expected \(PERSID'),
    "BINPERSID of a text": (text("/etc/passwd") + b"Q", r'persistent id "/etc/passwd", a storage'),
    "BINPERSID of a module": (
        b"(" + text("module") + SYSTEM + text("a.py") + text("import os") + b"tQ",
        r"asks for os\.system \(GLOBAL",
    ),
    "BINPERSID of a module by its name": (
        b"(" + text("module") + text("os.system") + text("a.py") + text("import os") + b"tQ" + ARGUMENTS + b"R",
        r"calls a value of type str",
    ),
    "BINPERSID of another kind": (
        b"(" + text("file") + text("/etc/passwd") + b"tQ",
        r'persistent id "file", a storage expected',
    ),
    "BINPERSID of nothing": (b")Q", r"a storage expected"),
    "a storage of no type": (storage().replace(b"FloatStorage", b"Size"), r"a storage of torch\.Size"),
    "a storage of no size": (storage(numel=-1), r"without a name or a size"),
    "DUP": (b"K\0012", r"does not write \(DUP"),
    "POP": (b"K\0010", r"does not write \(POP"),
    "INT": (b"I1\n", r"does not write \(INT"),
    "LONG": (b"L" + b"9" * 9999 + b"L\n", r"does not write \(LONG"),
    "GET": (b"g0\n", r"does not write \(GET"),
    "NEXT_BUFFER": (b"\x97", r"does not write \(NEXT_BUFFER"),
    "no opcode": (b"\xff", r"no opcode of a pickle, 255"),
    "protocol 9": (b"\x80\x09", r"has protocol 9"),
    "a tensor of no storage": (tensor(of=b"N"), r"makes a tensor of a value of type NoneType"),
    "a tensor of a tensor": (tensor(of=tensor()), r"makes a tensor of a value of type Tensor"),
    "a size of texts": (tensor().replace(numbers((2, 3)), b"(" + text("2") + text("3") + b"t"), r"not integers"),
    "a size of bools": (tensor().replace(numbers((2, 3)), b"\x88\x88\x86"), r"not integers"),
    "a size that is a list": (tensor().replace(numbers((2, 3)), b"](K\2K\3e"), r"two tuples"),
    "strides too few": (tensor((2, 3), (1,)), r"two tuples"),
    "too many sizes": (tensor((1,) * 40, (1,) * 40), r"at most 32 integers"),
    "too few arguments": (named("torch._utils", "_rebuild_tensor_v2") + b")R", r"with 0 arguments"),
    "a fifth argument": (
        named("torch._utils", "_rebuild_tensor")
        + b"("
        + storage()
        + b"K\0"
        + numbers((6,))
        + numbers((1,))
        + b"NtR",
        r"with 5 arguments",
    ),
    "a negative view": (
        tensor()[:-2] + b"}" + text("neg") + b"\x88stR",
        r"conjugate or negative view",
    ),
    "a dtype of the file's own": (
        tensor()[:-2].replace(b"tensor_v2", b"tensor_v3") + OPAQUE + b"tR",
        r"dtype argparse\.Namespace",
    ),
    "a quantized tensor": (named("torch._utils", "_rebuild_qtensor"), r"asks for torch\._utils\._rebuild_qtensor"),
    "a tensor of torchao": (
        named("torch._utils", "_rebuild_wrapper_subclass") + named("torchao.quantization", "Int8Tensor"),
        r"asks for torchao\.quantization\.Int8Tensor \(GLOBAL at byte \d+\): nothing of it was run",
    ),
    "a parameter of a text": (
        named("torch._utils", "_rebuild_parameter") + b"(" + text("x") + b"\x88}tR",
        r"a parameter of a value of type str",
    ),
    "from a type by another name": (
        named("torch._tensor", "_rebuild_from_type_v2") + b"(" + OPAQUE + OPAQUE + b")}tR",
        r"rebuilds a tensor with argparse\.Namespace",
    ),
    "from a type within itself": (
        named("torch._tensor", "_rebuild_from_type_v2")
        + b"("
        + named("torch._tensor", "_rebuild_from_type_v2")
        + OPAQUE
        + b")}tR",
        r"rebuilds a tensor with torch\._tensor\._rebuild_from_type_v2",
    ),
    "a key that is a list": (b"}]K\1s", r"has a key that is a value of type list"),
    "a key that is a dict": (b"}(}K\1u", r"has a key that is a value of type dict"),
    "a key that has a list": (b"}(]K\2tK\1s", r"has a key that is a value of type tuple"),
    "pairs that are none": (named("collections", "OrderedDict") + b"(](K\1etR", r"no list of pairs"),
    "a size of a number": (named("torch", "Size") + b"(K\1tR", r"torch\.Size of what is no tuple"),
    "APPEND to a text": (text("x") + b"K\1a", r"appends to a value of type str"),
    "SETITEM of a list": (b"]K\1K\2s", r"sets 2 keys and values of a value of type list"),
    "SETITEMS of three": (b"}(K\1K\2K\3u", r"sets 3 keys and values"),
    "ADDITEMS to a list": (b"](K\1\x90", r"adds to a value of type list"),
    "a memo that is not there": (b"h\7", r"recalls 7, which it did not memorize"),
    "a mark that is not there": (b"tttttt", r"closes a mark"),
    "a name of control codes": (named("\x1b[31mos", "sys\rtem"), r"asks for \"\\x1b\[31mos\.sys\\rtem\""),
    "a name that is not UTF-8": (b"c\xff\xfe\nx\n", r"not UTF-8, b'\\xff\\xfe'"),
    "a text that is not UTF-8": (b"X\2\0\0\0\xff\xfe", r"not UTF-8, b'\\xff\\xfe'"),
    "half a surrogate": (b"X\3\0\0\0\xed\xa0\x80", r"not UTF-8"),
    "a name without an end": (b"c" + b"o" * 5000, r"does not end within 512 bytes"),
}
# Lengths that are lies.
HUGE = {
    "BINUNICODE": (b"X\xff\xff\xff\xff", r"4294967295 bytes expected, \d+ left \(BINUNICODE"),
    "BINUNICODE8": (b"\x8d" + b"\xff" * 8, r"18446744073709551615 bytes expected, \d+ left \(BINUNICODE8"),
    "BINBYTES": (b"B\xff\xff\xff\xff", r"4294967295 bytes expected"),
    "BINBYTES8": (b"\x8e" + b"\xff" * 8, r"18446744073709551615 bytes expected, \d+ left \(BINBYTES8"),
    "BYTEARRAY8": (b"\x96" + b"\xff" * 8, r"18446744073709551615 bytes expected"),
    "BINSTRING": (b"T\xff\xff\xff\x7f", r"2147483647 bytes expected"),
    "BINSTRING backwards": (b"T\xff\xff\xff\xff", r"-1 bytes expected"),
    "LONG1": (b"\x8a\xff" + b"\1" * 255, r"an integer of 255 bytes, at most 64"),
    "LONG4": (b"\x8b\xff\xff\xff\x7f", r"an integer of 2147483647 bytes, at most 64"),
    "LONG4 backwards": (b"\x8b\xff\xff\xff\xff", r"an integer of -1 bytes"),
    "FRAME": (b"\x95" + b"\xff" * 8, r"a frame of 18446744073709551615 bytes expected"),
    "FRAME a little longer": (b"\x95" + struct.pack("<Q", 10**4), r"a frame of 10000 bytes expected"),
}


@pytest.mark.parametrize("case", [*EVIL, *HUGE])
def test_a_pickle_is_refused_by_what_it_asks_for(refusal, case):
    opcodes, says = (EVIL | HUGE)[case]
    assert re.search(says, refusal(zipped(put(opcodes))))
    assert re.search(says, refusal(legacy(put(opcodes))))


@pytest.mark.parametrize("content", [V2 + SYSTEM + ARGUMENTS + b"R.", SYSTEM + ARGUMENTS + b"R."])
def test_a_bare_pickle(refusal, ran, content):
    assert "asks for os.system (GLOBAL at byte " in refusal(content)
    assert "asks for os.system (GLOBAL at byte " in refusal(legacy(state(w=tensor()))[:21] + content)
    pickle.loads(content)
    assert ran == ["os.system"]  # so it is a working one


def test_every_builtin_and_nothing_of_python_is_imported(refusal, monkeypatch):
    """Of the builtins only types of plain values have a meaning; a name imports no module."""
    monkeypatch.setattr(importlib, "import_module", None)
    plain = {"set", "frozenset", "bytearray", "complex", "dict", "list", "tuple", "int", "float", "str", "bool"}
    for name in set(dir(builtins)) - plain:
        assert f"asks for builtins.{name} (" in refusal(zipped(put(named("builtins", name) + b")R")))
    assert "asks for antigravity.fly (" in refusal(zipped(put(named("antigravity", "fly"))))
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("made", [zipped, legacy])
def test_cut_anywhere(refusal, made):
    content = made(state(w=tensor(), v=tensor((3, 2), (1, 3))))
    for end in range(1, len(content), 3):
        assert refusal(content[:end])


def test_a_pickle_cut_anywhere(refusal):
    content = state(w=tensor(), v=tensor((3, 2), (1, 3)))
    for end in range(0, len(content), 2):
        assert refusal(zipped(content[:end]))
    assert "goes on after its end" in refusal(zipped(content + b"."))


STRIDED = {
    "beyond the end": (
        tensor((2, 4), (4, 1)),
        r'"w": shape \[2, 4\], strides \[4, 1\], offset 0: its last element',
    ),
    "one too far": (tensor(offset=1), r"last element is 6, its storage ends at 6"),
    "far beyond": (tensor((2, 3), (2**62, 1)), r"last element is 4611686018427387906"),
    "beyond all": (tensor((2, 3), (2**200, 1)), r"strides \[beyond 10\^20, 1\]"),
    "an offset beyond all": (tensor(offset=2**200), r"last element is beyond 10\^20"),
    "a negative size": (tensor((-2, -3), (3, 1)), r"none negative"),
    "a negative stride": (tensor((2, 3), (-3, 1), offset=3), r"none negative"),
    "a negative offset": (tensor(offset=-1), r"none negative"),
    "2^60 elements of one": (tensor((2**60,), (0,)), r"2\^48"),
    "2^40 elements of one": (tensor((2**20, 2**20), (0, 0)), r"repeats 24 bytes of storage up to 4398046511104"),
    "empty and giant": (tensor((2**62, 0), (1, 1)), r"2\^48"),
    "a storage that is not there": (tensor(of=storage("7")), r'its storage "7" is not in the file|no tensor'),
    "a key that steps out": (tensor(of=storage("../../../etc/passwd")), r"is not in the file|no tensor"),
    "a storage that is larger": (tensor(of=storage(numel=7)), r"24 bytes|7 of 4 expected"),
    "a storage that is smaller": (tensor((5,), (1,), of=storage(numel=5)), r"24 bytes|5 of 4 expected"),
    "a storage of 2^62": (tensor(of=storage(numel=2**62)), r"4611686018427387904"),
}


@pytest.mark.parametrize("made", [zipped, legacy])
@pytest.mark.parametrize("case", STRIDED)
def test_a_tensor_stays_in_its_storage(refusal, made, case):
    opcodes, says = STRIDED[case]
    assert re.search(says, refusal(made(state(w=opcodes))))


@pytest.mark.parametrize("made", [zipped, legacy])
def test_a_storage_has_one_type(refusal, made):
    content = state(v=tensor(), w=tensor(of=storage(numel=3, kind="DoubleStorage"), size=(3,), stride=(1,)))
    assert 'the storage "0" with two types' in refusal(made(content))


LEGACY = {
    "another magic number": (legacy(state(w=tensor()), magic=7), "begins with a value of type int"),
    "another version": (legacy(state(w=tensor()), version=1002), "protocol 1001"),
    "a system that is a list": (legacy(state(w=tensor()), system=[]), "little-endian"),
    "a key twice": (legacy(state(w=tensor()), keys=["0", "0"]), 'the storage "0" is there twice'),
    "a key of nobody": (legacy(state(w=tensor()), keys=["0", "1"]), 'the storage "1" is there twice, or no'),
    "a key that is a number": (legacy(state(w=tensor()), keys=[0]), "a list of texts expected"),
    "no keys": (legacy(state(w=tensor()), keys=[], data=b""), 'storage "0" is not in the file'),
    "2^62 elements": (legacy(state(w=tensor()), data=struct.pack("<q", 2**62) + FLOATS), "4611686018427387904 el"),
    "-1 elements": (legacy(state(w=tensor()), data=struct.pack("<q", -1) + FLOATS), "has -1 elements"),
    "fewer elements": (legacy(state(w=tensor()), data=struct.pack("<q", 5) + FLOATS), "6 of 4 expected"),
    "bytes left over": (legacy(state(w=tensor())) + b"\0", "1 bytes after its last storage"),
    "a tar": (b"sys_info".ljust(257, b"\0") + b"ustar" + b"\0" * 250, "a tar archive, as torch wrote before"),
}


@pytest.mark.parametrize("case", LEGACY)
def test_legacy(refusal, case):
    content, says = LEGACY[case]
    assert says in refusal(content)


WHAT = {
    "a list": (b"](" + tensor() + b"e", "holds a value of type list, a state dict expected"),
    "a tensor": (tensor(), "holds a value of type Tensor"),
    "an object": (OPAQUE + b")\x81", "holds argparse.Namespace"),
    "nothing": (b"}", "no tensors in its 0 entries"),
    "no tensors": (b"}(" + text("a") + b"K\1" + text("b") + b"]u", "no tensors in its 2 entries"),
    "a name twice": (
        b"}(" + text("a.b") + tensor() + text("a") + b"}" + text("b") + tensor() + b"su",
        'tensor "a.b" is there twice',
    ),
    "an endless name": (b"}" + text("n" * 10**5) + tensor() + b"s", '(100000 characters)": at most 512'),
}


@pytest.mark.parametrize("case", WHAT)
def test_what_is_no_state_dict(refusal, case):
    content, says = WHAT[case]
    assert says in refusal(zipped(V2 + content + b"."))


def get(i):
    return b"h" + bytes([i])


def memorized(i):
    return b"q" + bytes([i])


# 200 of each, each holding the one before it twice; the last is 200 in the memo.
LISTS = b"]" + memorized(0) + b"".join(b"](" + get(i) * 2 + b"e" + memorized(i + 1) for i in range(200))
TUPLES = b")" + memorized(0) + b"".join(get(i) * 2 + b"\x86" + memorized(i + 1) for i in range(200))
DICTS = b"}" + memorized(0)
DICTS += b"".join(b"}(" + text("a") + get(i) + text("b") + get(i) + b"u" + memorized(i + 1) for i in range(200))


def holding(made, use):
    """A state dict that uses what was made, which a tuple keeps."""
    return V2 + b"}(" + text("made") + b"(" + made + b"t" + use + b"u."


def entries(n, value):
    return b"}(" + b"".join(text(str(i)) + value for i in range(n)) + b"u"


PAIR = b"](" + text("a") + b"Ne"
BOMBS = {
    "marks": (V2 + b"(" * 5000, "nested deeper than 200 (MARK"),
    "lists in lists": (V2 + b"]" * 5000 + b"a" * 4999 + b".", "holds a value of type list"),
    "tuples in tuples": (V2 + b")" + b"\x85" * 5000 + b".", "holds a value of type tuple"),
    "dicts in dicts": (V2 + b"}" + (text("a") + b"}") * 999 + b"s" * 999 + b".", "deeper than 6"),
    "a list of itself": (V2 + b"]q\0h\0a.", "holds a value of type list"),
    "a dict of itself": (V2 + b"}q\0" + text("a") + b"h\0s.", "deeper than 6"),
    "lists that double": (holding(LISTS, text("a") + get(200)), "no tensors in its 2 entries"),
    "tuples that double": (holding(TUPLES, text("a") + get(200)), "no tensors in its 2 entries"),
    "tuples that double, as a key": (holding(TUPLES, get(200) + b"N"), "no tensors in its 1 entries"),
    "tuples that double, in a set": (holding(TUPLES, text("a") + b"\x8f(" + get(200) + b"\x90"), "no tensors"),
    "dicts that double": (holding(DICTS, text("a") + get(200)), "deeper than 6"),
    "dicts of one dict": (
        holding(entries(70, b"N") + memorized(0), entries(70, get(0))[2:-1]),
        "or 4096 entries",
    ),
    "tensors of one dict": (
        holding(entries(40, tensor()) + memorized(0), entries(40, get(0))[2:-1]),
        "1024 tens",
    ),
    "copies of one list": (
        holding(
            b"](" + PAIR * 100 + b"e" + memorized(0) + named("collections", "OrderedDict") + memorized(1),
            text("a") + b"(" + (get(1) + get(0) + b"\x85R") * 200 + b"t",
        ),
        "more than 16384 opcodes and copies (REDUCE",
    ),
    "copies of one size": (
        holding(
            b"(" + b"N" * 1000 + b"t" + memorized(0) + named("torch", "Size") + memorized(1),
            text("a") + b"(" + (get(1) + get(0) + b"\x85R") * 200 + b"t",
        ),
        "more than 16384 opcodes and copies (REDUCE",
    ),
    "copies of parameters": (
        holding(
            b"}" + text("_parameters") + entries(100, b"N") + b"s" + memorized(0),
            text("a") + b"(" + (b"}" + get(0) + b"b") * 200 + b"t",
        ),
        "more than 16384 opcodes and copies (BUILD",
    ),
    "a memo of 2^32": (V2 + b"}r\xff\xff\xff\xff.", "no tensors"),
    "opcodes without end": (V2 + b"N" * 2**14, "more than 16384 opcodes"),
    "texts without end": (V2 + text("x" * 2**24), "at most 16777216"),
}


@pytest.mark.parametrize("case", BOMBS)
def test_bombs(refusal, monkeypatch, case):
    monkeypatch.setattr("refsd.files.unpickle.MAX_OPCODES", 2**14)
    monkeypatch.setattr("refsd.files.pickle_reader.MAX_TENSORS", 2**10)
    monkeypatch.setattr("refsd.files.pickle_reader.MAX_ENTRIES", 2**12)
    content, says = BOMBS[case]
    assert says in refusal(zipped(content))


IN_LITTLE_MEMORY = """
import resource, sys
from refsd.numerics.errors import BadInput
from refsd.files.formats import open_weights
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 192 * 2**20,) * 2)
for path in sys.argv[1:]:
    try:
        open_weights(path)
        print(f"{path}: opened")
    except BadInput as error:
        print(error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc how much memory is taken")
def test_no_memory_is_taken(tmp_path):
    """A process that may take 192 MiB more ends with all of them: no number becomes an allocation."""
    hostile = {name: V2 + b"}(" + text("w") + opcodes + b"u." for name, (opcodes, _) in HUGE.items()}
    hostile |= {name: content for name, (content, _) in BOMBS.items()}
    hostile |= {name: state(w=opcodes) for name, (opcodes, _) in STRIDED.items()}
    hostile |= {f"2^20 of {opcode!a}": V2 + opcode * 2**20 for opcode in (b"}", b"\x8f")}
    deep = 3 * 10**5
    hostile |= {"lists": V2 + b"]" * deep + b"a" * (deep - 1) + b".", "tuples": V2 + b")" + b"\x85" * deep + b"."}
    paths = []
    for i, content in enumerate(hostile.values()):
        paths.append(tmp_path / f"{i}.ckpt")
        paths[-1].write_bytes(legacy(content))
    run = [sys.executable, "-P", "-c", IN_LITTLE_MEMORY, *map(str, paths)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert [line.split(": ")[0] for line in done.stdout.splitlines()] == [str(path) for path in paths]


def test_the_command_line_says_it_in_one_line(tmp_path, ran, capsys, monkeypatch):
    (tmp_path / "a.ckpt").write_bytes(zipped(put(SYSTEM + ARGUMENTS + b"R")))
    monkeypatch.setattr("sys.argv", ["refsd", "info", str(tmp_path / "a.ckpt")])
    with pytest.raises(SystemExit) as exit:
        main()
    out, err = capsys.readouterr()
    assert (exit.value.code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"refsd: {tmp_path / 'a.ckpt'}: the pickle asks for os.system (GLOBAL at byte ")
    assert ran == []


def test_a_pickle_by_the_name_of_another_format(refusal):
    content = zipped(put(SYSTEM))
    assert "not GGUF" in refusal(content, "a.gguf")


def test_a_pickle_called_safetensors(refusal):
    assert "asks for os.system" in refusal(zipped(put(SYSTEM)), "a.safetensors")


def test_a_pickle_in_shards(tmp_path, ran):
    (tmp_path / "1.bin").write_bytes(zipped(put(SYSTEM)))
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "1.bin"}}))
    with pytest.raises(BadInput, match=r"1\.bin: the pickle asks for os\.system"):
        open_weights(index)
    assert ran == []
