"""Compare two weight files tensor by tensor, across layouts and storage types, one pair of tensors in memory."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd.networks.dimensions import Shape
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor
from refsd.weights.checkpoint import Checkpoint, survey
from refsd.weights.size_vote import same_shape
from refsd.weights.stored import enough_memory

PIECE = 2**20  # elements of a tensor that are expanded at a time
# Relative L2 error up to which blocks of few bits still hold the same tensor; of unrelated tensors it is 1.4.
_LOST = 0.6
# Relative L2 error up to which a float type's values are the same tensor's.
_ROUNDED = {"f64": 1e-15, "f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}
_SIGNATURE = 256  # values of a tensor by which an exchanged one is recognised
_ALIKE = 0.8  # correlation of two signatures from which they are of one tensor
STORAGE = ("same", "cast", "requantised")


class Row(NamedTuple):
    """One tensor in two files.

    name:    in the original's layout, after its component; the files' own name if it belongs to none
    verdict: same; cast, requantised (another storage type of the same values); scaled, transposed, permuted,
             swapped, changed; shape (another shape); missing (only in the first file), extra (only in the second)
    types:   of the first and of the second file
    error:   relative L2 distance of the second from the first, once the verdict is allowed for
    detail:  what else there is to say: the factor, the axes, the tensor it was swapped with
    """

    name: str
    verdict: str
    types: tuple[str, str]
    error: float | None = None
    detail: str = ""


class _Tensor(NamedTuple):
    """A tensor of a file under its canonical name; `read` expands nothing."""

    type: str
    shape: Shape
    read: Callable[[], StoredTensor]


class _Sums(NamedTuple):
    """<a, a>, <b, b>, <a, b> and |b - a|^2, in float64."""

    aa: float
    bb: float
    ab: float
    dd: float


def compare(old: Path, new: Path, progress: Callable[[int], None] = lambda _: None) -> list[Row]:
    """Compare two files or folders of weights -> a row for each tensor that either has.

    progress: called with the number of elements of each tensor of the first file
    Raises BadInput for a file that cannot be read.
    """
    a, b = _tensors(survey(old)), _tensors(survey(new))
    rows, odd = [], []
    for name, there in a.items():
        here = b.get(name)
        if here is None:
            rows.append(Row(name, "missing", (there.type, "")))
        else:
            with enough_memory(new, name):
                row = _row(name, there, here)
            rows.append(row)
            if row.verdict == "changed":
                odd.append(name)
        progress(math.prod(there.shape))
    rows += [Row(name, "extra", ("", here.type)) for name, here in b.items() if name not in a]
    partners = _swapped({name: a[name] for name in odd}, {name: b[name] for name in odd})
    return [
        row._replace(verdict="swapped", detail=f"with {partners[row.name]}") if row.name in partners else row
        for row in rows
    ]


def elements(path: Path) -> int:
    """Count the elements of a file's tensors, for a progress bar."""
    return sum(math.prod(header.shape) for file in survey(path).files for header in file.headers.values())


def _tensors(checkpoint: Checkpoint) -> dict[str, _Tensor]:
    """Return canonical name -> tensor; names without a component are the file's."""
    found: dict[str, _Tensor] = {}
    taken: set[str] = set()
    for component in checkpoint.components.values():
        file = component.weights.file
        for ours, source in component.weights.sources.items():
            if len({file.headers[part].shape[1:] for part in source.names}) > 1:
                continue
            kinds = "+".join(dict.fromkeys(file.headers[part].type for part in source.names))
            read = _reader(source, file)
            found[f"{component.name}: {ours}"] = _Tensor(kinds, component.weights.shapes[ours], read)
            taken.update(source.names)
    for file in checkpoint.files:
        for name, header in file.headers.items():
            if name not in taken:
                found[name] = _Tensor(header.type, header.shape, lambda file=file, name=name: file[name])
    return found


def _reader(source, file) -> Callable[[], StoredTensor]:
    return lambda: source.read(file)


def _row(name: str, a: _Tensor, b: _Tensor) -> Row:
    types = a.type, b.type
    if not same_shape(b.shape, a.shape):
        return _other_shape(name, a, b)
    one, other = a.read(), b.read()
    if one.type == other.type and _same_bytes(one, other):
        return Row(name, "same", types, 0.0)
    sums = _sums(one, other)
    if not sums.dd:
        return Row(name, "same" if a.type == b.type else "cast", types, 0.0)
    error = math.sqrt(sums.dd / sums.aa) if sums.aa else math.inf
    if a.type != b.type and error <= _tolerance(types):
        both = all(type in _ROUNDED for type in types)
        return Row(name, "cast" if both else "requantised", types, error)
    factor = sums.ab / sums.aa if sums.aa else 0.0
    rest = math.sqrt(max(0.0, 1 - sums.ab**2 / (sums.aa * sums.bb))) if sums.aa * sums.bb else 1.0
    if factor and rest <= max(1e-6, _tolerance(types) / 10) and abs(factor - 1) > 3 * rest:
        return Row(name, "scaled", types, rest, f"by {factor:.6g}")
    if len(a.shape) == 2 and a.shape[0] == a.shape[1]:
        turned = _turned(a, b, (1, 0))
        if turned is not None and turned <= _tolerance(types):
            return Row(name, "transposed", types, turned)
    if len(a.shape) > 1 and _rows_permuted(one, other):
        return Row(name, "permuted", types, 0.0, "its rows")
    return Row(name, "changed", types, error)


def _other_shape(name: str, a: _Tensor, b: _Tensor) -> Row:
    types, shapes = (a.type, b.type), f"{list(a.shape)} and {list(b.shape)}"
    if sorted(a.shape) == sorted(b.shape) and len(a.shape) < 6:
        for axes in itertools.permutations(range(len(a.shape))):
            if tuple(a.shape[axis] for axis in axes) == b.shape:
                error = _turned(a, b, axes)
                if error is not None and error <= _tolerance(types):
                    verdict = "transposed" if len(axes) == 2 else "permuted"
                    return Row(name, verdict, types, error, f"axes {list(axes)}" if len(axes) > 2 else shapes)
    return Row(name, "shape", types, None, shapes)


def _turned(a: _Tensor, b: _Tensor, axes: tuple[int, ...]) -> float | None:
    """Return the relative error of b against a with its axes in this order; None for a type of integers."""
    x = np.asarray(a.read().values(), np.float32).transpose(axes)
    y = np.asarray(b.read().values(), np.float32)
    power = float(np.vdot(x, x))
    return float(np.linalg.norm((y - x).ravel())) / math.sqrt(power) if power else None


def _tolerance(types: Iterable[str]) -> float:
    """Return the error up to which two tensors of these storage types may be one."""
    return max(
        _ROUNDED.get(type, _LOST if type not in SCALAR_TYPES or type.startswith("f8_") else 0) for type in types
    )


def _same_bytes(a: StoredTensor, b: StoredTensor) -> bool:
    if (a.scaling is None) != (b.scaling is None) or a.data.nbytes != b.data.nbytes:
        return False
    if a.scaling is not None and b.scaling is not None and not np.array_equal(a.scaling.scale, b.scaling.scale):
        return False
    x, y = (np.ascontiguousarray(t.data).reshape(-1).view(np.uint8) for t in (a, b))
    return all(np.array_equal(x[i : i + PIECE], y[i : i + PIECE]) for i in range(0, len(x), PIECE))


def _pieces(tensor: StoredTensor) -> Iterator[np.ndarray]:
    """Yield the values in order, in float64, about PIECE elements at a time."""
    if not tensor.shape:
        tensor = tensor._replace(shape=(1,), data=tensor.data.reshape(1))
    rows, width = math.prod(tensor.shape[:-1]), max(1, tensor.shape[-1])
    step = max(1, PIECE // width)
    for start in range(0, rows, step):
        part = tensor.rows(slice(start, min(rows, start + step)))
        yield np.asarray(part.values(), np.float64).reshape(-1)


def _sums(a: StoredTensor, b: StoredTensor) -> _Sums:
    if b.shape != a.shape:  # an outermost dimension of 1
        b = b._replace(
            shape=a.shape, data=b.data if b.data.ndim == 1 and len(a.shape) > 1 else b.data.reshape(a.shape)
        )
    sums = np.zeros(4)
    for x, y in zip(_pieces(a), _pieces(b), strict=True):
        d = y - x
        sums += (x @ x, y @ y, x @ y, d @ d)
    return _Sums(*map(float, sums))


def _rows_permuted(a: StoredTensor, b: StoredTensor) -> bool:
    """True if both have the same rows, value for value, in another order."""

    def hashes(tensor: StoredTensor) -> list[int]:
        width, short = math.prod(tensor.shape[1:]), math.prod(tensor.shape[1:-1])
        step, found = max(1, PIECE // max(1, width)), []
        for start in range(0, tensor.shape[0], step):
            part = tensor.rows(slice(start * short, min(start + step, tensor.shape[0]) * short))
            rows = np.asarray(part.values(), np.float32).reshape(-1, width)
            found += [hash(row.tobytes()) for row in rows]
        return sorted(found)

    return hashes(a) == hashes(b)


def _swapped(a: dict[str, _Tensor], b: dict[str, _Tensor]) -> dict[str, str]:
    """Match changed tensors: name -> the tensor of the first file whose values it has in the second."""
    found: dict[str, str] = {}
    shapes: dict[Shape, list[str]] = {}
    for name, tensor in a.items():
        if math.prod(tensor.shape) > 1:
            shapes.setdefault(tensor.shape, []).append(name)
    for names in shapes.values():
        if len(names) < 2:
            continue
        olds = np.stack([_signature(a[name]) for name in names])
        for name in names:
            alike = olds @ _signature(b[name])
            best = int(alike.argmax())
            if alike[best] >= _ALIKE and names[best] != name:
                found[name] = names[best]
    return found


def _signature(tensor: _Tensor) -> np.ndarray:
    """Return values spread over the tensor, without their mean, of length 1."""
    held = tensor.read()
    if not held.shape:
        return np.zeros(_SIGNATURE)
    rows = math.prod(held.shape[:-1])
    index = np.unique(np.linspace(0, rows - 1, 16).astype(np.int64))
    values = np.asarray(held.rows(index).values(), np.float64).reshape(-1)
    at = np.linspace(0, len(values) - 1, _SIGNATURE).astype(np.int64)
    chosen = values[at] - values[at].mean()
    length = float(np.linalg.norm(chosen))
    return chosen / length if length else chosen
