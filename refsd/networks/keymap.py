"""Where another layout keeps the original checkpoint's tensors: tables, and the few rules they need.

A row says that what stands under one prefix here stands under another there. Where their side has
several prefixes, ours is their concatenation. The first row of a prefix is the one that is written;
later rows are read as well.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from refsd.networks.dimensions import Shape
from refsd.numerics.tensor import StoredTensor, stored


class Rule(NamedTuple):
    """
    shape: the shapes of their parts -> the shape of ours
    join:  their parts, as StoredTensors -> ours
    split: ours, and how many rows each of their parts has -> their parts
    """

    shape: Callable[[Sequence[Shape]], Shape]
    join: Callable[[Sequence[StoredTensor]], StoredTensor]
    split: Callable[[StoredTensor, Sequence[int]], list[StoredTensor]]


class Row(NamedTuple):
    ours: str
    theirs: tuple[str, ...]
    rule: Rule


class Source(NamedTuple):
    """The names in the file that make one of our tensors, and how."""

    names: tuple[str, ...]
    rule: Rule

    def shape(self, shapes: Mapping[str, Shape]) -> Shape:
        return self.rule.shape([shapes[name] for name in self.names])

    def read(self, weights: Mapping[str, StoredTensor]) -> StoredTensor:
        return self.rule.join([weights[name] for name in self.names])


def _concat(parts: Sequence[StoredTensor]) -> StoredTensor:
    """Stack on the first axis. Rows are whole blocks, so that packed types are stacked as bytes."""
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


def _reshaped(tensor: StoredTensor, shape: Shape) -> StoredTensor:
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
# A 1x1 convolution [K, C, 1, 1] that they keep as a linear layer [K, C].
POINTWISE = Rule(
    _pointwise_shape,
    lambda parts: _reshaped(parts[0], _pointwise_shape([parts[0].shape])),
    lambda tensor, _: [_reshaped(tensor, tensor.shape[:2])],
)
# Shift and scale stand in the other order.
SWAP = Rule(
    lambda shapes: shapes[0],
    lambda parts: _swap_halves(parts[0]),
    lambda tensor, _: [_swap_halves(tensor)],
)


class Keymap:
    """Rows, looked up by a name's longest known prefix. What no row knows keeps its name if `rest_same`."""

    def __init__(self, rows: Iterable[Row], rest_same: bool = False):
        self.rest_same = rest_same
        self._ours: dict[str, Row] = {}
        self._theirs: dict[str, Row] = {}
        for row in rows:
            self._ours.setdefault(row.ours, row)
            for prefix in row.theirs:
                self._theirs[prefix] = row

    def theirs(self, name: str) -> Source | None:
        """Our name -> theirs."""
        return _find(self._ours, name, lambda row, leaf: Source(tuple(p + leaf for p in row.theirs), row.rule)) or (
            Source((name,), SAME) if self.rest_same else None
        )

    def ours(self, name: str) -> tuple[str, Source] | None:
        """Their name -> ours, and all that ours is made of."""
        return _find(
            self._theirs,
            name,
            lambda row, leaf: (row.ours + leaf, Source(tuple(p + leaf for p in row.theirs), row.rule)),
        ) or ((name, Source((name,), SAME)) if self.rest_same else None)

    def sources(self, names: Iterable[str]) -> tuple[dict[str, Source], list[str]]:
        """Their names -> where each of ours comes from; and the names that make none of ours."""
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
        """Our tensors -> theirs. `rows` gives the rows of the parts of what must be split, else equal parts.

        Raises KeyError for a name that no row knows.
        """
        out: dict[str, StoredTensor] = {}
        for name, tensor in weights.items():
            source = self.theirs(name)
            if source is None:
                raise KeyError(name)
            n = len(source.names)
            parts = (rows or {}).get(name) or [tensor.shape[0] // n] * n
            out.update(zip(source.names, source.rule.split(tensor, parts), strict=True))
        return out


def _find(table: Mapping[str, Row], name: str, found):
    end = len(name)
    while end > 0:
        if name[:end] in table:
            return found(table[name[:end]], name[end:])
        end = name.rfind(".", 0, end)
    return None


def prefix_rows(pairs: Iterable[tuple[str, str]], ours: str = "", theirs: str = "", rule: Rule = SAME) -> list[Row]:
    return [Row(ours + a, (theirs + b,), rule) for a, b in pairs]


def same_names(_: Collection[str]) -> Keymap:
    return Keymap((), rest_same=True)
