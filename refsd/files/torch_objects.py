"""Represent the contents of torch's pickles as inert values, and list the global names that a pickle may ask for.

A name that is not in these tables is refused, and no name is ever imported. Calling a name gives a dict, a
tensor's place in a storage, a tuple, or Opaque: a placeholder for objects that training left in a checkpoint and
that no tensor needs.
Source: torch/_utils.py (_rebuild_*), torch/serialization.py (persistent_load).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from refsd.files.stored import shown
from refsd.numerics.tensor import MAX_RANK


class Refused(Exception):
    """The pickle asks for something that refsd refuses. The reader adds file, opcode and byte to the message."""


class Damaged(Refused):
    """The pickle is malformed: no pickle writer produces this."""


class ByteRange(NamedTuple):
    """Where a storage's bytes are in the file. crc: their CRC-32; None if the file has none."""

    start: int
    nbytes: int
    crc: int | None = None


class Element(NamedTuple):
    """A type of tensor elements.

    type:  as StoredTensor.type; also types that refsd cannot read
    bytes: size of one element
    """

    type: str
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Global:
    """A global name (module.name) that the pickle asked for."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """Placeholder for an object of the pickle that no tensor needs."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """A storage, or a view of a part of one.

    key:    the storage's name in the file
    start:  first element of the view
    numel:  number of elements in the view
    whole:  number of elements in the storage
    """

    element: Element
    key: str
    start: int
    numel: int
    whole: int


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor as a view of a storage: offset, size, strides in elements, not yet checked against the storage."""

    storage: Storage
    element: Element
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


STORAGES = {
    "DoubleStorage": Element("f64", 8),
    "FloatStorage": Element("f32", 4),
    "HalfStorage": Element("f16", 2),
    "BFloat16Storage": Element("bf16", 2),
    "LongStorage": Element("i64", 8),
    "IntStorage": Element("i32", 4),
    "ShortStorage": Element("i16", 2),
    "CharStorage": Element("i8", 1),
    "ByteStorage": Element("u8", 1),
    "BoolStorage": Element("bool", 1),
    "ComplexFloatStorage": Element("c64", 8),
    "ComplexDoubleStorage": Element("c128", 16),
}
STORAGE_NAMES = {f"{module}.{name}": e for name, e in STORAGES.items() for module in ("torch", "torch.cuda")}
STORAGE_NAMES["torch.storage.UntypedStorage"] = Element("u8", 1)

DTYPES = {
    "torch.float64": Element("f64", 8),
    "torch.float32": Element("f32", 4),
    "torch.float16": Element("f16", 2),
    "torch.bfloat16": Element("bf16", 2),
    "torch.float8_e4m3fn": Element("f8_e4m3", 1),
    "torch.float8_e5m2": Element("f8_e5m2", 1),
    "torch.float8_e4m3fnuz": Element("f8_e4m3fnuz", 1),
    "torch.float8_e5m2fnuz": Element("f8_e5m2fnuz", 1),
    "torch.float8_e8m0fnu": Element("f8_e8m0", 1),
    "torch.int64": Element("i64", 8),
    "torch.int32": Element("i32", 4),
    "torch.int16": Element("i16", 2),
    "torch.int8": Element("i8", 1),
    "torch.uint64": Element("u64", 8),
    "torch.uint32": Element("u32", 4),
    "torch.uint16": Element("u16", 2),
    "torch.uint8": Element("u8", 1),
    "torch.bool": Element("bool", 1),
    "torch.complex64": Element("c64", 8),
    "torch.complex128": Element("c128", 16),
}

DICTS = {
    "collections.OrderedDict",
    "collections.defaultdict",
    "collections.Counter",
    "torch.nn.modules.container.ParameterDict",
}

# Objects that trainers store beside the weights: callbacks' names, settings, counters, NumPy numbers.
_PLAIN = ("set", "frozenset", "bytearray", "complex", "dict", "list", "tuple", "int", "float", "str", "bool")
OPAQUE = {f"{module}.{name}" for module in ("builtins", "__builtin__") for name in _PLAIN} | {
    f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")
}
OPAQUE.add("torch._utils._rebuild_wrapper_subclass")  # the class, which follows, is refused by its name
OPAQUE |= {
    f"{lightning}.{name}"
    for lightning in ("pytorch_lightning", "lightning.pytorch")
    for name in (
        "callbacks.early_stopping.EarlyStopping",
        "callbacks.model_checkpoint",
        "callbacks.model_checkpoint.ModelCheckpoint",
        "utilities.parsing.AttributeDict",
    )
}
OPAQUE |= {
    "_codecs.encode",
    "argparse.Namespace",
    "lightning_fabric.utilities.data.AttributeDict",
    "numpy.dtype",
    "numpy.ndarray",
    "omegaconf.base.ContainerMetadata",
    "omegaconf.base.Metadata",
    "omegaconf.dictconfig.DictConfig",
    "omegaconf.listconfig.ListConfig",
    "omegaconf.nodes.AnyNode",
    "pathlib.PosixPath",
    "pathlib.WindowsPath",
    "torch.Tensor",
    "torch.device",
    "torch.torch_version.TorchVersion",
    "typing.Any",
}


def named(name: str) -> Global:
    """Return the Global of a name. Raises Refused if the name is in no table."""
    if not any(name in table for table in (STORAGE_NAMES, DTYPES, DICTS, OPAQUE, CALLS)):
        raise Refused(f"asks for {printed(name)}")
    return Global(name)


def call(function: Any, arguments: Any) -> Any:
    """Return a value that stands for a call's result; call nothing. Raises Refused if torch writes no such call."""
    if type(function) is not Global or type(arguments) is not tuple:
        raise Refused(f"calls {kind(function)} with {kind(arguments)}, a name with a tuple expected")
    if function.name in CALLS:
        try:
            return CALLS[function.name](*arguments)
        except TypeError:
            raise Refused(f"calls {function.name} with {len(arguments)} arguments") from None
    if function.name in DICTS:
        return _dict(arguments)
    if function.name in OPAQUE:
        return Opaque(function.name)
    raise Refused(f"calls {function.name}, which is a type of elements")


def build(of: Any, state: Any) -> int:
    """Set an object's state (opcode BUILD): keep only the parameters of a ParameterDict -> their number."""
    if type(of) is dict:
        parameters = state.get("_parameters") if type(state) is dict else None
        if type(parameters) is dict:
            of.update(parameters)
            return len(parameters)
    elif type(of) is not Opaque:
        raise Refused(f"gives a state to {kind(of)}")
    return 0


def storage(identity: Any) -> Storage:
    """Read a persistent id: ("storage", type, key, location, elements[, view]).

    view: (key, start, elements) or None
    """
    if type(identity) is not tuple or len(identity) not in (5, 6) or identity[0] != "storage":
        first = identity[0] if type(identity) is tuple and identity else identity
        name = shown(first) if type(first) is str else kind(identity)
        raise Refused(f"asks for the persistent id {name}, a storage expected")
    _, of, key, _, numel = identity[:5]
    view = identity[5] if len(identity) == 6 else None
    if type(of) is not Global or of.name not in STORAGE_NAMES:
        raise Refused(f"asks for a storage of {of.name if type(of) is Global else kind(of)}")
    if type(key) is not str or not _whole(numel):
        raise Refused("asks for a storage without a name or a size")
    element = STORAGE_NAMES[of.name]
    if view is None:
        return Storage(element, key, 0, numel, numel)
    if type(view) is not tuple or len(view) != 3 or not _whole(view[1]) or not _whole(view[2]):
        raise Refused(f"asks for a view of the storage {shown(key)} that has no start or size")
    if view[1] + view[2] > numel:
        raise Refused(f"asks for a view of the storage {shown(key)} that ends outside it")
    return Storage(element, key, view[1], view[2], numel)


def kind(value: Any) -> str:
    """Describe a value in a few words, for messages."""
    return value.name if type(value) in (Global, Opaque) else f"a value of type {type(value).__name__}"


def printed(name: str) -> str:
    """Return a dotted Python name as it is, any other text in quotes."""
    return name if re.fullmatch(r"[\w.]{1,120}", name, re.ASCII) else shown(name)


def put(into: dict, key: Any, value: Any) -> None:
    """Set a dict's entry if the key is text; drop entries with other keys, which cannot be tensor names.

    Raises Damaged for a key that is or contains a list or a dict.
    """
    if any(type(part) in (list, dict) for part in (key, *(key if type(key) is tuple else ()))):
        raise Damaged(f"has a key that is {kind(key)}, which Python cannot hash")
    if type(key) is str:
        into[key] = value


def _whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _dict(arguments: tuple) -> dict:
    """Build a dict from OrderedDict(), OrderedDict([[key, value], ...]), defaultdict(factory) or Counter({...})."""
    pairs = arguments[0] if arguments else ()
    if type(pairs) is dict:
        return pairs
    found: dict = {}
    for pair in pairs if type(pairs) is list else ():
        if type(pair) not in (tuple, list) or len(pair) != 2:
            raise Refused("makes a dict of what is no list of pairs")
        put(found, *pair)
    return found


def _size(*sizes: Any) -> tuple:
    if len(sizes) != 1 or type(sizes[0]) not in (tuple, list):
        raise Refused("makes a torch.Size of what is no tuple")
    return tuple(sizes[0])


def _tensor(of: Any, offset: Any, size: Any, stride: Any) -> Tensor:
    if type(of) is not Storage:
        raise Refused(f"makes a tensor of {kind(of)}, a storage expected")
    if type(size) is not tuple or type(stride) is not tuple or len(size) != len(stride) or len(size) > MAX_RANK:
        raise Refused(f"makes a tensor whose size and stride are not two tuples of at most {MAX_RANK} integers")
    if not all(type(number) is int for number in (offset, *size, *stride)):
        raise Refused("makes a tensor whose offset, size or stride are not integers")
    return Tensor(of, of.element, offset, size, stride)


def _tensor_v2(of, offset, size, stride, requires_grad, hooks, metadata=None) -> Tensor:
    del requires_grad, hooks
    if metadata is not None and (type(metadata) is not dict or len(metadata) > 8 or any(metadata.values())):
        raise Refused("makes a tensor that is a conjugate or negative view: its values are not those in the file")
    return _tensor(of, offset, size, stride)


def _tensor_v3(of, offset, size, stride, requires_grad, hooks, dtype, metadata=None) -> Tensor:
    if type(dtype) is not Global or dtype.name not in DTYPES:
        raise Refused(f"makes a tensor of the dtype {kind(dtype)}")
    tensor = _tensor_v2(of, offset, size, stride, requires_grad, hooks, metadata)
    return replace(tensor, element=DTYPES[dtype.name])


def _parameter(data, requires_grad=None, hooks=None, state=None) -> Tensor:
    del requires_grad, hooks, state
    if type(data) is not Tensor:
        raise Refused(f"makes a parameter of {kind(data)}, a tensor expected")
    return data


def _from_type(function, of, arguments, state) -> Any:
    """Rebuild a tensor that was saved with Python attributes; drop the attributes."""
    del of, state
    if type(function) is not Global or function.name not in _REBUILD:
        raise Refused(f"rebuilds a tensor with {kind(function)}")
    return call(function, arguments)


_REBUILD: dict[str, Callable] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _parameter,
    "torch._utils._rebuild_parameter_with_state": _parameter,
}
CALLS: dict[str, Callable] = {
    **_REBUILD,
    "torch.nn.parameter.Parameter": _parameter,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch.Size": _size,
}
