"""Find which entry of a list of numbers, such as a bias or the heads' sinks, an engine took at each place."""

from collections.abc import Iterator
from functools import reduce

import numpy as np

from refsd.causes.generic.error_places import joined
from refsd.causes.generic.orders import rules
from refsd.causes.operation.declared import letters
from refsd.golden.mutations import answer
from refsd.golden.operation import Inputs, Operation, Params
from refsd.numerics.tensor import StoredTensor, stored

# Numbers of all answers together, one for each entry.
_MOST = 1 << 22
# Entries of an axis of several, at the most.
_FEW = 8
# Share of the places at which a rule's entry must be the nearest one.
_NEARLY_ALL = 0.98


def other_entries(
    op: Operation, inputs: Inputs, params: Params, actual: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) with the entries of an input along one axis read by another rule."""
    axes = [f"axis {letter or a}" for a, letter in enumerate(letters(op, "", actual.ndim))]
    counts = {name: n for name, n in params.items() if isinstance(n, int) and n > 1}
    flat = {actual.ndim - 1: "all rows", actual.ndim: "all elements"}
    if not np.isfinite(actual).all() or answer(op, inputs, params).shape != actual.shape:
        return
    for names, axis in _lists(op, inputs):
        n = inputs[names[0]].shape[axis]
        if n * actual.size > _MOST:
            continue
        each = np.empty((n, *actual.shape), np.float32)
        for i in range(n):
            one = {name: _of_one(inputs[name].values(), axis, i) for name in names}
            each[i] = answer(op, {**inputs, **one}, params)
        nearest = reduce(np.minimum, (np.abs(y - actual) for y in each))
        of = f"{joined(names, 'and')}" + (f" along axis {axis}" if len(inputs[names[0]].shape) > 1 else "")
        for rule, read in rules(actual.shape, n, axes, flat, counts):
            y = np.take_along_axis(each, read[None], 0)[0]
            if np.mean(np.abs(y - actual) <= nearest) >= _NEARLY_ALL:
                yield f"entries of {of} are read {rule}", y


def _lists(op: Operation, inputs: Inputs) -> Iterator[tuple[list[str], int]]:
    """Yield inputs, and those of one shape that no result has together, with an axis whose entries are repeated."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for name, tensor in inputs.items():
        if tensor.values().dtype.kind == "f":
            alike.setdefault(tensor.shape, []).append(name)
    for shape, names in alike.items():
        for some in [[name] for name in names] + ([names] if len(names) > 1 else []):
            for axis, n in enumerate(shape):
                if n > 1 and (len(shape) == 1 or n <= _FEW):
                    yield some, axis


def _of_one(x: np.ndarray, axis: int, i: int) -> StoredTensor:
    return stored(np.ascontiguousarray(np.broadcast_to(x.take([i], axis), x.shape), np.float32))
