"""Compare two weight files tensor by tensor, across layouts and storage types, one pair of tensors in memory."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refsd.diagnosis.health import prefixed
from refsd.diagnosis.requantising import PIECE, deviation, rotation_between
from refsd.files.stored import Weights, enough_memory
from refsd.kernels.quant import BLOCK_TYPES
from refsd.networks.dimensions import Shape
from refsd.numerics.tensor import Grouping, StoredTensor, stored
from refsd.weights.checkpoint import Checkpoint, survey
from refsd.weights.size_vote import same_shape

_FLOATS = ("f64", "f32", "f16", "bf16")
_SIGNATURE = 256  # values of a tensor by which an exchanged one is recognised
_ALIKE = 0.8  # correlation of two signatures from which they are of one tensor
STORAGE = ("same", "cast", "requantised")


class Row(NamedTuple):
    """One tensor in two files.

    name:    in the original's layout, after its component; the files' own name if it belongs to none
    verdict: same; cast, requantised (another storage type of the same values); scaled, transposed, permuted,
             rotated, swapped, changed; shape (another shape); missing (only in the first file), extra (only in the
             second)
    types:   of the first and of the second file
    error:   relative L2 distance of the second from the first, once the verdict is allowed for
    detail:  what else there is to say: the factor, the axes, the rows that differ, the tensor it was swapped with
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


def of_two_models(old: Path, new: Path) -> list[str]:
    """Say what each file is, if they are not of one model: its family, or the prefix that hides it."""
    surveyed = {path: survey(path) for path in (old, new)}
    titles = {path: one.family.title if one.family else one.foreign or "" for path, one in surveyed.items()}
    if titles[old] == titles[new]:
        return []
    lines = []
    for path, one in surveyed.items():
        unknown = set(one.unknown)
        shapes = {n: header.shape for file in one.files for n, header in file.headers.items() if n in unknown}
        hidden = [finding.text for finding in prefixed(path, shapes)]
        lines.append(f"{path}: {'; '.join(filter(None, [titles[path], *hidden])) or 'no model that refsd knows'}")
    return lines


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
            kinds = "+".join(dict.fromkeys(_kind(file, part) for part in source.names))
            read = _reader(source, file)
            found[f"{component.name}: {ours}"] = _Tensor(kinds, component.weights.shapes[ours], read)
            taken.update(source.names)
    for file in checkpoint.files:
        for name, header in file.headers.items():
            if name not in taken:
                found[name] = _Tensor(_kind(file, name), header.shape, lambda file=file, name=name: file[name])
    return found


def _kind(file: Weights, name: str) -> str:
    return file.expanded.get(name, file.headers[name].type).removeprefix("in ")


def _reader(source, file) -> Callable[[], StoredTensor]:
    return lambda: source.read(file)


def _row(name: str, a: _Tensor, b: _Tensor) -> Row:
    types = a.type, b.type
    if not same_shape(b.shape, a.shape):
        return _other_shape(name, a, b)
    one, other = a.read(), b.read()
    if other.shape != one.shape:  # an outermost dimension of 1
        blocks = other.type in BLOCK_TYPES or isinstance(other.scaling, Grouping)
        other = other._replace(shape=one.shape, data=other.data if blocks else other.data.reshape(one.shape))
    alike, same = one.type == other.type, _same_bytes(one, other)
    if alike and same:
        return Row(name, "same", types, 0.0)
    found = deviation(one, other)
    if not found.error:
        return Row(name, "same" if alike else "cast", types, 0.0)
    if not math.isfinite(found.error):
        bad = [int((~np.isfinite(t.values())).sum()) for t in (one, other)]
        return Row(name, "changed", types, None, f"{bad[1]} NaN or infinite, {bad[0]} in the first")
    if same:
        return Row(name, "changed", types, found.error, f"the same bytes, {b.type} by the header and not {a.type}")
    if found.factor != 1:
        return Row(name, "scaled", types, found.rest, f"by {found.factor:.6g}")
    if found.within:
        both = all(type in _FLOATS for type in types)
        return Row(name, "cast" if both else "requantised", types, found.error)
    if len(a.shape) == 2 and a.shape[0] == a.shape[1]:
        turned = _turned(one, other, (1, 0))
        if turned is not None:
            return Row(name, "transposed", types, turned)
    if len(a.shape) > 1 and _rows_permuted(one, other):
        return Row(name, "permuted", types, 0.0, "its rows")
    if group := rotation_between(one, other):
        text = f"in groups of {group} (ConvRot), which the file does not say; it agrees once that is undone"
        return Row(name, "rotated", types, found.error, text)
    return Row(name, "changed", types, found.error, found.place)


def _other_shape(name: str, a: _Tensor, b: _Tensor) -> Row:
    types, shapes = (a.type, b.type), f"{list(a.shape)} and {list(b.shape)}"
    if sorted(a.shape) == sorted(b.shape) and len(a.shape) < 6:
        one, other = a.read(), b.read()
        for axes in itertools.permutations(range(len(a.shape))):
            if tuple(a.shape[axis] for axis in axes) == b.shape:
                error = _turned(one, other, axes)
                if error is not None:
                    verdict = "transposed" if len(axes) == 2 else "permuted"
                    return Row(name, verdict, types, error, f"axes {list(axes)}" if len(axes) > 2 else shapes)
    return Row(name, "shape", types, None, shapes)


def _turned(a: StoredTensor, b: StoredTensor, axes: tuple[int, ...]) -> float | None:
    """Return the relative error of b against a with its axes in this order; None if requantising costs less."""
    found = deviation(stored(np.ascontiguousarray(a.values().transpose(axes))), b)
    return found.error if found.within else None


def _same_bytes(a: StoredTensor, b: StoredTensor) -> bool:
    if (a.scaling is None) != (b.scaling is None) or a.data.nbytes != b.data.nbytes:
        return False
    if a.scaling is not None and b.scaling is not None:
        (scale, *how), (other, *more) = a.scaling, b.scaling
        if how != more or not np.array_equal(scale, other):
            return False
    x, y = (np.ascontiguousarray(t.data).reshape(-1).view(np.uint8) for t in (a, b))
    return all(np.array_equal(x[i : i + PIECE], y[i : i + PIECE]) for i in range(0, len(x), PIECE))


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
