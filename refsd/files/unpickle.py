"""Read a pickle as data: a stack machine for the opcodes of torch's files, which runs no code.

It imports no class and calls no function: it looks names up in the tables of torch_objects and represents objects
by a dict, a tuple, a tensor's place in the file, or a placeholder. Lengths are checked against the file before
anything is allocated; the numbers of opcodes, nesting levels and digits are limited.
Source: CPython, Lib/pickletools.py.
"""

import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refsd.files.stored import Content, shown
from refsd.files.torch_objects import (
    CALLS,
    OPAQUE,
    Damaged,
    Global,
    Opaque,
    Refused,
    Storage,
    build,
    call,
    kind,
    named,
    printed,
    put,
    storage,
)
from refsd.numerics.errors import BadInput

MAX_PICKLE = 2**24  # bytes; the pickle of a large model is a tenth of this
MAX_OPCODES = 2**20  # limits the memory that the values take
MAX_DEPTH = 200  # open marks
MAX_LONG = 64  # bytes of an integer
MAX_LINE = 512  # bytes of a name
MAX_PROTOCOL = 5


def unpickle(
    path: Path, data: Content, at: int, end: int, storages: dict[str, Storage] | None = None
) -> tuple[Any, int]:
    """Read one pickle that begins at byte `at` and ends before `end` -> its value, and the position after it.

    storages: if given, receives every storage of the pickle by its key; one key must have one type and size

    Raises BadInput, in one line with the name, opcode and byte, for whatever torch does not write.
    """
    machine = _Machine(data, at, min(end, at + MAX_PICKLE), storages)
    try:
        return machine.run(), machine.at
    except Refused as refused:
        advice = (
            "is it whole, and a checkpoint of torch's?"
            if isinstance(refused, Damaged)
            else "nothing of it was run; if you trust the file, save its state dict as safetensors"
        )
        raise BadInput(
            f"{path}: the pickle {refused} ({machine.opcode} at byte {machine.began}): {advice}"
        ) from None


class _Machine:
    """The pickle machine. stack: values since the last mark; below: the stacks of the marks before it."""

    def __init__(self, data: Content, at: int, end: int, storages: dict[str, Storage] | None):
        self.data = data
        self.at = at
        self.end = end
        self.storages = storages
        self.began = at
        self.opcode = "no opcode"
        self.left = MAX_OPCODES
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            self.spend(1)
            self.began = self.at
            code = self.take(1)[0]
            self.opcode = NAMES.get(code, f"no opcode of a pickle, {code}")
            if self.opcode == "STOP":
                if self.below or len(self.stack) != 1:
                    raise Damaged(f"ends with {len(self.stack) + len(self.below)} values, one expected")
                return self.stack[0]
            STEPS.get(self.opcode, _Machine.refuse)(self)

    def spend(self, n: int) -> None:
        """Count opcodes and copied values against MAX_OPCODES, so that a small pickle cannot take much memory."""
        self.left -= n
        if self.left < 0:
            raise Refused(f"has more than {MAX_OPCODES} opcodes and copies")

    # Reading

    def take(self, n: int) -> bytes:
        if not 0 <= n <= self.end - self.at:
            raise Damaged(
                f"is cut short, or longer than {MAX_PICKLE} bytes: {n} bytes expected, {self.end - self.at} left"
            )
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def line(self) -> str:
        stop = self.data.find(b"\n", self.at, min(self.end, self.at + MAX_LINE))
        if stop < 0:
            raise Damaged(f"has a name that does not end within {MAX_LINE} bytes")
        return self.text(self.take(stop + 1 - self.at)[:-1])

    def text(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Damaged(f"has a text that is not UTF-8, {raw[error.start :][:16]!a}") from None

    # The stack

    def pop(self) -> Any:
        if not self.stack:
            raise Damaged("takes from an empty stack")
        return self.stack.pop()

    def top(self) -> Any:
        if not self.stack:
            raise Damaged("takes from an empty stack")
        return self.stack[-1]

    def pop_mark(self) -> list[Any]:
        if not self.below:
            raise Damaged("closes a mark that it did not open")
        items, self.stack = self.stack, self.below.pop()
        return items

    # Opcodes

    def refuse(self) -> None:
        """Refuse an opcode that torch never writes; name what the opcode asks for."""
        if self.opcode == "INST":
            raise Refused(f"asks for {printed(f'{self.line()}.{self.line()}')}")
        if self.opcode == "PERSID":
            raise Refused(f"asks for the persistent id {shown(self.line())}, a storage expected")
        if self.opcode in EXTENSIONS:
            raise Refused(f"asks for the extension code {self.number(EXTENSIONS[self.opcode])}")
        raise Refused("has an opcode that torch does not write")

    def protocol(self) -> None:
        version = self.number("<B")
        if version > MAX_PROTOCOL:
            raise Damaged(f"has protocol {version}, at most {MAX_PROTOCOL} expected")

    def frame(self) -> None:
        length = self.number("<Q")
        if length > self.end - self.at:
            raise Damaged(f"is cut short: a frame of {length} bytes expected, {self.end - self.at} left")

    def mark(self) -> None:
        if len(self.below) == MAX_DEPTH:
            raise Refused(f"is nested deeper than {MAX_DEPTH}")
        self.below.append(self.stack)
        self.stack = []

    def long(self, code: str) -> None:
        n = self.number(code)
        if not 0 <= n <= MAX_LONG:
            raise Damaged(f"has an integer of {n} bytes, at most {MAX_LONG} expected")
        self.stack.append(int.from_bytes(self.take(n), "little", signed=True))

    def unicode(self, code: str) -> None:
        self.stack.append(self.text(self.take(self.number(code))))

    def octets(self, code: str) -> None:
        self.stack.append(self.take(self.number(code)))

    def string(self, code: str) -> None:
        """Push a Python 2 string: as text if it is UTF-8, else as bytes."""
        raw = self.take(self.number(code))
        try:
            self.stack.append(raw.decode("utf-8"))
        except UnicodeDecodeError:
            self.stack.append(raw)

    def tuple_of(self, n: int) -> None:
        items = [self.pop() for _ in range(n)]
        self.stack.append(tuple(items[::-1]))

    def tuple_to_mark(self) -> None:
        items = self.pop_mark()
        self.stack.append(tuple(items))

    def extend(self, items: list[Any]) -> None:
        into = self.top()
        if type(into) is list:
            into.extend(items)
        elif type(into) is not Opaque:
            raise Refused(f"appends to {kind(into)}")

    def update(self, items: list[Any]) -> None:
        into = self.top()
        if len(items) % 2 or type(into) not in (dict, Opaque):
            raise Refused(f"sets {len(items)} keys and values of {kind(into)}")
        if type(into) is dict:
            for i in range(0, len(items), 2):
                put(into, items[i], items[i + 1])

    def add(self) -> None:
        self.pop_mark()
        if type(self.top()) is not Opaque:
            raise Refused(f"adds to {kind(self.top())}")

    def frozen(self) -> None:
        self.pop_mark()
        self.stack.append(Opaque("builtins.frozenset"))

    def remember(self, index: int) -> None:
        self.memo[index] = self.top()

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise Damaged(f"recalls {index}, which it did not memorize")
        self.stack.append(self.memo[index])

    def global_of_lines(self) -> None:
        self.stack.append(named(f"{self.line()}.{self.line()}"))

    def global_of_stack(self) -> None:
        name, module = self.pop(), self.pop()
        if type(name) is not str or type(module) is not str:
            raise Refused(f"asks for a name made of {kind(module)} and {kind(name)}")
        self.stack.append(named(f"{module}.{name}"))

    def call(self, function: Any, arguments: Any) -> None:
        if type(arguments) is tuple:
            self.spend(sum(len(argument) for argument in arguments if type(argument) in (tuple, list, dict)))
        self.stack.append(call(function, arguments))

    def reduce(self) -> None:
        arguments, function = self.pop(), self.pop()
        self.call(function, arguments)

    def new(self) -> None:
        arguments, of = self.pop(), self.pop()
        if type(of) is Global and of.name in CALLS:
            raise Refused(f"makes an object of {of.name}, which is a function")
        self.call(of, arguments)

    def new_with_keywords(self) -> None:
        of = self.stack[-3] if len(self.stack) > 2 else None
        if type(of) is not Global or of.name not in OPAQUE:
            raise Refused(f"makes an object of {kind(of)} with keywords")
        self.pop()
        self.new()

    def build(self) -> None:
        state = self.pop()
        self.spend(build(self.top(), state))

    def persistent(self) -> None:
        identity = self.pop()
        if type(identity) is tuple and len(identity) == 4 and identity[0] == "module":
            self.stack.append(identity[1])  # a class; drop its file name and source code
            return
        found = storage(identity)
        if self.storages is not None:
            before = self.storages.setdefault(found.key, found)
            if (before.element, before.whole) != (found.element, found.whole):
                raise Refused(f"asks for the storage {shown(found.key)} with two types or sizes")
        self.stack.append(found)


Step = Callable[[_Machine], None]
NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
EXTENSIONS = {"EXT1": "<B", "EXT2": "<H", "EXT4": "<i"}
STEPS: dict[str, Step] = {
    "PROTO": _Machine.protocol,
    "FRAME": _Machine.frame,
    "MARK": _Machine.mark,
    "NONE": lambda m: m.stack.append(None),
    "NEWTRUE": lambda m: m.stack.append(True),
    "NEWFALSE": lambda m: m.stack.append(False),
    "BININT": lambda m: m.stack.append(m.number("<i")),
    "BININT1": lambda m: m.stack.append(m.number("<B")),
    "BININT2": lambda m: m.stack.append(m.number("<H")),
    "LONG1": lambda m: m.long("<B"),
    "LONG4": lambda m: m.long("<i"),
    "BINFLOAT": lambda m: m.stack.append(m.number(">d")),
    "SHORT_BINUNICODE": lambda m: m.unicode("<B"),
    "BINUNICODE": lambda m: m.unicode("<I"),
    "BINUNICODE8": lambda m: m.unicode("<Q"),
    "SHORT_BINSTRING": lambda m: m.string("<B"),
    "BINSTRING": lambda m: m.string("<i"),
    "SHORT_BINBYTES": lambda m: m.octets("<B"),
    "BINBYTES": lambda m: m.octets("<I"),
    "BINBYTES8": lambda m: m.octets("<Q"),
    "BYTEARRAY8": lambda m: m.octets("<Q"),
    "EMPTY_TUPLE": lambda m: m.stack.append(()),
    "TUPLE1": lambda m: m.tuple_of(1),
    "TUPLE2": lambda m: m.tuple_of(2),
    "TUPLE3": lambda m: m.tuple_of(3),
    "TUPLE": _Machine.tuple_to_mark,
    "EMPTY_LIST": lambda m: m.stack.append([]),
    "APPEND": lambda m: m.extend([m.pop()]),
    "APPENDS": lambda m: m.extend(m.pop_mark()),
    "EMPTY_DICT": lambda m: m.stack.append({}),
    "SETITEM": lambda m: m.update([m.pop(), m.pop()][::-1]),
    "SETITEMS": lambda m: m.update(m.pop_mark()),
    "EMPTY_SET": lambda m: m.stack.append(Opaque("builtins.set")),
    "ADDITEMS": _Machine.add,
    "FROZENSET": _Machine.frozen,
    "BINPUT": lambda m: m.remember(m.number("<B")),
    "LONG_BINPUT": lambda m: m.remember(m.number("<I")),
    "MEMOIZE": lambda m: m.remember(len(m.memo)),
    "BINGET": lambda m: m.recall(m.number("<B")),
    "LONG_BINGET": lambda m: m.recall(m.number("<I")),
    "GLOBAL": _Machine.global_of_lines,
    "STACK_GLOBAL": _Machine.global_of_stack,
    "REDUCE": _Machine.reduce,
    "NEWOBJ": _Machine.new,
    "NEWOBJ_EX": _Machine.new_with_keywords,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.persistent,
}
