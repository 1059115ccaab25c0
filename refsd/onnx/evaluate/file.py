"""Read an ONNX file and its external data, trusting no length, no shape and no path in it."""

import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from onnx import TensorProto, numpy_helper

from refsd.golden.input_file import open_input, read_input
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import MAX_RANK, shape_problem
from refsd.onnx.evaluate.element_types import ELEMENT_TYPES, unpacked

_MOST = 2**31 - 1  # protobuf's own limit
_MOST_TENSOR = 2**40
_EXPECTED = "an ONNX model"
_STRING, _MESSAGE = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE


class Model:
    """A parsed file. folder: of the file, which its external data lie in"""

    def __init__(self, path: Path, proto: onnx.ModelProto):
        self.path, self.folder, self.proto = path, path.parent, proto
        self.opsets = {opset.domain or "": opset.version for opset in proto.opset_import}
        self.functions = {(f.domain or "", f.name, getattr(f, "overload", "")): f for f in proto.functions}

    def tensor(self, proto: TensorProto) -> "Tensor":
        """A tensor of the file, checked, not yet read."""
        return Tensor(self.folder, proto)


class Tensor:
    """A tensor in a file: its type and shape are known, its bytes are read by `values`.

    number: of its element type

    Raises BadInput for a type, a shape or a length that cannot be.
    """

    def __init__(self, folder: Path, proto: TensorProto):
        self._folder, self._proto, self.name = folder, proto, proto.name
        if proto.data_type not in ELEMENT_TYPES:
            raise BadInput(f"tensor {_quoted(self.name)} has the element type {proto.data_type}: no numbers")
        self.number, self.kind = proto.data_type, ELEMENT_TYPES[proto.data_type]
        self.shape = tuple(proto.dims)
        if problem := shape_problem(self.shape):
            raise BadInput(f"tensor {_quoted(self.name)} has the shape {list(self.shape)[:MAX_RANK]}: {problem}")
        if proto.HasField("segment"):
            raise BadInput(f"tensor {_quoted(self.name)} is a segment of another: no released tool writes these")
        self.count = math.prod(self.shape)
        self.bytes = -(-self.count * self.kind.bits // 8)
        if self.bytes > _MOST_TENSOR:
            raise BadInput(f"tensor {_quoted(self.name)} has the shape {list(self.shape)}: {self.bytes} bytes")
        if self._external:
            self._check_external()
        elif proto.HasField("raw_data") and len(proto.raw_data) != self.bytes:
            raise BadInput(
                f"tensor {_quoted(self.name)} of {self.kind.name} {list(self.shape)} takes {self.bytes} bytes, "
                f"it has {len(proto.raw_data)}: the file is damaged"
            )

    @property
    def _external(self) -> bool:
        return self._proto.data_location == TensorProto.EXTERNAL

    def values(self) -> np.ndarray:
        """Its values in the stored dtype; 2-bit and 4-bit integers in 8."""
        if not self._external and not self._proto.HasField("raw_data"):
            return self._typed()
        raw = self._mapped() if self._external else np.frombuffer(self._proto.raw_data, np.uint8)
        stored = self.kind.stored
        if self.kind.bits < 8:
            fields = unpacked(raw, self.kind.bits, self.count)
            if self.kind.held is None:
                return fields.view(stored).reshape(self.shape)
            sign = 2 ** (self.kind.bits - 1)
            if self.kind.held.kind == "i":
                fields = ((fields ^ sign).astype(np.int8) - np.int8(sign)).astype(np.int8)
            return fields.astype(self.kind.held).reshape(self.shape)
        return raw.view(stored.newbyteorder("<")).reshape(self.shape)

    def _typed(self) -> np.ndarray:
        """Values that stand in a typed field of the message; their number decides, before anything is made."""
        try:
            array = np.asarray(numpy_helper.to_array(self._proto))
        except (ValueError, TypeError) as error:
            words = " ".join(str(error).split())
            raise BadInput(f"tensor {_quoted(self.name)} {list(self.shape)}: {words}") from None
        if array.shape != self.shape:
            raise BadInput(
                f"tensor {_quoted(self.name)} is declared {list(self.shape)}, its data {list(array.shape)}"
            )
        return array if self.kind.held is None else array.astype(self.kind.held)

    def _place(self) -> tuple[Path, int, int]:
        entries = {entry.key: entry.value for entry in self._proto.external_data}
        location = entries.get("location", "")
        said = f"tensor {_quoted(self.name)}: external data {location!r}"
        path = Path(location)
        if not location or "\0" in location:
            raise BadInput(f"{said}: no file is named")
        if path.is_absolute() or "\\" in location or ":" in location or ".." in path.parts:
            raise BadInput(f"{said} lie outside the model's folder: refsd reads only what is in it")
        whole = self._folder / path
        # A link may lead anywhere; onnx's own rule refuses every link.
        parts = [self._folder.joinpath(*path.parts[: i + 1]) for i in range(len(path.parts))]
        if any(part.is_symlink() for part in parts):
            raise BadInput(f"{said} is a link: refsd reads only files in the model's folder")
        numbers = []
        for key, default in (("offset", 0), ("length", self.bytes)):
            text = entries.get(key, str(default))
            if not text.isascii() or not text.isdigit() or len(text) > 18:
                raise BadInput(f"{said}: {key} {text[:40]!r} is no number")
            numbers.append(int(text))
        return whole, *numbers

    def _check_external(self) -> None:
        path, offset, length = self._place()
        if length != self.bytes:
            raise BadInput(
                f"tensor {_quoted(self.name)} of {self.kind.name} {list(self.shape)} takes {self.bytes} bytes, its "
                f"external data has {length}"
            )
        with open_input(path, "external data") as file:
            size = os.fstat(file.fileno()).st_size
        if offset + length > size:
            raise BadInput(
                f"{path}: tensor {_quoted(self.name)} ends at byte {offset + length}, the file at {size}"
            )

    def _mapped(self) -> np.ndarray:
        path, offset, length = self._place()
        if not length:
            return np.zeros(0, np.uint8)
        return np.memmap(path, np.uint8, "r", offset, (length,))


def open_model(path: Path) -> Model:
    """Parse a file. Raises BadInput for what is none, and for one that is damaged or has no graph."""
    proto = parse(path, onnx.ModelProto(), _EXPECTED)
    if not proto.HasField("graph") or not proto.ir_version:
        raise BadInput(f"{path}: not an ONNX model: no graph or no ir_version in it")
    return Model(path, proto)


P = TypeVar("P", onnx.ModelProto, onnx.TensorProto)


def parse(path: Path, message: P, expected: str) -> P:
    """Read a message of protobuf. Raises BadInput for what is none."""
    content = read_input(path, _MOST, expected)
    try:
        message.ParseFromString(content)
    except Exception as error:  # protobuf's DecodeError, which has no other base
        words = " ".join(str(error).split())[:120]
        raise BadInput(f"{path}: not {expected}, or cut short, or nested too deep: {words}") from None
    _check_text(path, message)
    return message


def _check_text(path: Path, message: Message) -> None:
    """Raise BadInput for a name that is no UTF-8: protobuf parses it, and gives bytes in place of a str."""
    strings, messages = _fields(message.DESCRIPTOR)
    for name in strings:
        value = getattr(message, name)
        for text in (value,) if isinstance(value, (str, bytes)) else value:
            if isinstance(text, bytes):
                raise BadInput(
                    f"{path}: {message.DESCRIPTOR.name}.{name} is {text[:60]!a}, no UTF-8: the file is damaged"
                )
    for name in messages:
        value = getattr(message, name)
        for inner in value if not isinstance(value, Message) else [value] if message.HasField(name) else []:
            _check_text(path, inner)


@functools.cache
def _fields(kind: Descriptor) -> tuple[list[str], list[str]]:
    """Return the names of a message's fields that hold text, and of those that hold messages."""
    of_type = {t: [f.name for f in kind.fields if f.type == t] for t in (_STRING, _MESSAGE)}
    return of_type[_STRING], of_type[_MESSAGE]


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _quoted(name: str) -> str:
    return repr(name[:100])
