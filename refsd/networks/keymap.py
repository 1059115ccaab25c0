"""Map the original checkpoint's tensor names to another layout's, by tables of name prefixes and a few rules.

Here "ours" is the original checkpoint, "theirs" the other layout. A row maps a prefix of ours to one of theirs. If
their side has several prefixes, our tensor is the concatenation of theirs. If several rows have the same prefix of
ours, all are read, and the first is written.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refsd.networks.dimensions import Shape
from refsd.numerics.tensor import StoredTensor, stored


class Rule(NamedTuple):
    """How one of our tensors is made of theirs.

    shape: shapes of their tensors -> shape of ours
    join:  their tensors -> ours
    split: our tensor, number of rows of each of theirs -> their tensors
    """

    shape: Callable[[Sequence[Shape]], Shape]
    join: Callable[[Sequence[StoredTensor]], StoredTensor]
    split: Callable[[StoredTensor, Sequence[int]], list[StoredTensor]]


class Row(NamedTuple):
    ours: str
    theirs: tuple[str, ...]
    rule: Rule


class Source(NamedTuple):
    """Names of the file's tensors that make up one of ours, and the rule that joins them."""

    names: tuple[str, ...]
    rule: Rule

    def shape(self, shapes: Mapping[str, Shape]) -> Shape:
        return self.rule.shape([shapes[name] for name in self.names])

    def read(self, weights: Mapping[str, StoredTensor]) -> StoredTensor:
        return self.rule.join([weights[name] for name in self.names])


def _concat(parts: Sequence[StoredTensor]) -> StoredTensor:
    """Concatenate on the first axis. Rows are whole blocks, so packed types are concatenated as bytes."""
    shape = _concat_shape([part.shape for part in parts])
    if len({part.type for part in parts}) > 1 or any(part.scaling for part in parts):
        arrays = [np.asarray(part.values(), np.float32) for part in parts]
        return StoredTensor("f32", shape, np.concatenate(arrays))
    data = np.concatenate([part.data for part in parts])
    return StoredTensor(parts[0].type, shape, data)


def _concat_shape(shapes: Sequence[Shape]) -> Shape:
    return (sum(shape[0] for shape in shapes if shape), *shapes[0][1:])


def _split_rows(tensor: StoredTensor, rows: Sequence[int]) -> list[StoredTensor]:
    if tensor.scaling:
        tensor = stored(tensor.values())
    per_row = len(tensor.data) // tensor.shape[0]
    ends = np.cumsum(rows)
    return [
        StoredTensor(tensor.type, (n, *tensor.shape[1:]), tensor.data[(end - n) * per_row : end * per_row])
        for n, end in zip(rows, ends, strict=True)
    ]


def reshaped(tensor: StoredTensor, shape: Shape) -> StoredTensor:
    data = tensor.data if tensor.data.ndim == 1 else tensor.data.reshape(shape)
    return tensor._replace(shape=shape, data=data)


def _pointwise_shape(shapes: Sequence[Shape]) -> Shape:
    (shape,) = shapes
    return (*shape, 1, 1) if len(shape) == 2 else shape


def _swap_halves(tensor: StoredTensor) -> StoredTensor:
    half = tensor.shape[0] // 2
    shift, scale = _split_rows(tensor, (half, tensor.shape[0] - half))
    return _concat((scale, shift))


SAME = Rule(lambda shapes: shapes[0], lambda parts: parts[0], lambda tensor, _: [tensor])
CONCAT = Rule(_concat_shape, _concat, _split_rows)
# Our 1x1 convolution [K, C, 1, 1] is a linear layer [K, C] in theirs.
POINTWISE = Rule(
    _pointwise_shape,
    lambda parts: reshaped(parts[0], _pointwise_shape([parts[0].shape])),
    lambda tensor, _: [reshaped(tensor, tensor.shape[:2])],
)
# Shift and scale, the two halves of a modulation, are in the opposite order.
SWAP = Rule(
    lambda shapes: shapes[0],
    lambda parts: _swap_halves(parts[0]),
    lambda tensor, _: [_swap_halves(tensor)],
)


class Keymap:
    """A table of rows, searched by a name's longest known prefix. If `rest_same`, other names stay the same."""

    def __init__(self, rows: Iterable[Row], rest_same: bool = False):
        self.rest_same = rest_same
        self._ours: dict[str, Row] = {}
        self._theirs: dict[str, Row] = {}
        for row in rows:
            self._ours.setdefault(row.ours, row)
            for prefix in row.theirs:
                self._theirs[prefix] = row

    def theirs(self, name: str) -> Source | None:
        """Return the source of one of our tensors in their layout; None if no row has it."""
        return _find(self._ours, name, lambda row, leaf: Source(tuple(p + leaf for p in row.theirs), row.rule)) or (
            Source((name,), SAME) if self.rest_same else None
        )

    def ours(self, name: str) -> tuple[str, Source] | None:
        """Return our name for one of theirs, and the source of our tensor; None if no row has it."""
        return _find(
            self._theirs,
            name,
            lambda row, leaf: (row.ours + leaf, Source(tuple(p + leaf for p in row.theirs), row.rule)),
        ) or ((name, Source((name,), SAME)) if self.rest_same else None)

    def sources(self, names: Iterable[str]) -> tuple[dict[str, Source], list[str]]:
        """Return the source of each of our tensors that their names make up, and the names that are left over."""
        names = list(names)
        there = set(names)
        found: dict[str, Source] = {}
        rest = []
        for name in names:
            hit = self.ours(name)
            if hit is None or not there.issuperset(hit[1].names) or name not in found.setdefault(*hit).names:
                rest.append(name)
        return found, rest

    def write(self, weights: Mapping[str, StoredTensor], rows: Mapping[str, Sequence[int]] | None = None):
        """Convert our tensors to theirs.

        rows: our name -> number of rows of each part, for tensors that are not split equally
        Raises KeyError for a name without a row.
        """
        out: dict[str, StoredTensor] = {}
        for name, tensor in weights.items():
            source = self.theirs(name)
            if source is None:
                raise KeyError(name)
            n = len(source.names)
            height, *_ = tensor.shape or (1,)  # a number has no rows
            parts = (rows or {}).get(name) or [height // n] * n
            out.update(zip(source.names, source.rule.split(tensor, parts), strict=True))
        return out


def _find(table: Mapping[str, Row], name: str, found):
    end = len(name)
    while end > 0:
        if name[:end] in table:
            return found(table[name[:end]], name[end:])
        end = name.rfind(".", 0, end)
    return None


def prefix_rows(table: Iterable[Sequence[Any]], ours: str = "", theirs: str = "", rule: Rule = SAME) -> list[Row]:
    """Return the rows of a table: (our name, theirs), or (our name, their names, rule).

    ours, theirs: what precedes the names of either side; rule: of entries that have none
    """
    rows = []
    for name, parts, *own in table:
        parts = (parts,) if isinstance(parts, str) else parts
        rows.append(Row(ours + name, tuple(theirs + part for part in parts), own[0] if own else rule))
    return rows


def block_rows(n: int, ours: str, theirs: str, table: Iterable[Sequence[Any]]) -> list[Row]:
    """Return the rows of n numbered blocks: "double_blocks", "transformer_blocks". table: names within a block"""
    return [row for i in range(n) for row in prefix_rows(table, f"{ours}.{i}.", f"{theirs}.{i}.")]


def same_names(_: Collection[str]) -> Keymap:
    return Keymap((), rest_same=True)
