"""Find which slices of an input an engine read in place of which: the first for all, only the last, each twice.

For an operation that is linear in an input, with slices x_j along one axis,

    found - op(0) = sum over i, j of M[i, j] (op(x_j in place i) - op(0))

Least squares give M. The right M is the identity; a wrong one says what was read instead.
"""

import itertools
import time
from collections.abc import Iterator

import numpy as np

from refsd.causes.operation.generated_mutants import letters
from refsd.golden.mutations import answer
from refsd.golden.operation import Inputs, Operation, Params
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored

# An axis has at most this many slices, or blocks of one of these lengths.
_MOST = 8
_BLOCKS = (16, 32, 8, 64, 4, 128)
_LARGE = 1 << 18
# M is sure if the equations leave this share of the error, and its numbers are whole to within _WHOLE.
_LEFT, _WHOLE = 1e-4, 2e-3
_SAMPLE = 2048
# Seconds of CPU for all inputs and axes of a call.
_SECONDS = 2.0


def read_slices(
    op: Operation, inputs: Inputs, params: Params, found: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) for each input and axis of which other slices explain the answer.

    params: complete; found: the engine's answer
    """
    if not np.isfinite(found).all():
        return
    end = time.process_time() + _SECONDS
    for name, tensor in inputs.items():
        x = tensor.values()
        if x.dtype.kind != "f" or x.size > _LARGE or not np.isfinite(x).all():
            continue

        def run(y: np.ndarray, name: str = name) -> np.ndarray:
            return answer(op, {**inputs, name: stored(np.ascontiguousarray(y, np.float32))}, params)

        axes = letters(op, name, x.ndim)
        for axis, n in enumerate(x.shape):
            for length in (1, *_BLOCKS):
                count = n // length
                if n % length or not 2 <= count <= _MOST:
                    continue
                if time.process_time() > end:
                    return
                try:
                    read = _matrix(run, np.asarray(x, np.float64), axis, count, found, end)
                except (BadInput, ValueError):
                    break
                if read is None or np.array_equal(read, np.eye(count)):
                    continue
                y = run(_mixed(np.asarray(x, np.float64), axis, count, read))
                yield f"{name}, axis {axes[axis] or axis}: {_told(read, length)}", y


def _mixed(x: np.ndarray, axis: int, count: int, read: np.ndarray) -> np.ndarray:
    """Return x with block i being the sum over j of read[i, j] times block j."""
    blocks = np.moveaxis(x, axis, 0).reshape(count, -1)
    mixed = (read @ blocks).reshape(np.moveaxis(x, axis, 0).shape)
    return np.moveaxis(mixed, 0, axis)


def _matrix(run, x: np.ndarray, axis: int, count: int, found: np.ndarray, end: float) -> np.ndarray | None:
    """Return M, of whole numbers; None if none explains the answer in time, as where it is not linear."""
    base = run(np.zeros_like(x)).astype(np.float64)
    if base.shape != found.shape or found.size < 2 * count * count:
        return None
    at = np.linspace(0, found.size - 1, min(found.size, _SAMPLE)).astype(np.int64)
    wanted = (found - base).ravel()[at]
    columns = np.empty((len(at), count, count))

    def column(i: int, j: int) -> np.ndarray:
        one = np.zeros((count, count))
        one[i, j] = 1.0
        return (run(_mixed(x, axis, count, one)) - base).ravel()[at]

    for i in range(count):
        columns[:, i, i] = column(i, i)
    whole = columns[:, range(count), range(count)].sum(axis=1)
    right = (run(x) - base).ravel()[at]
    if not np.linalg.norm(whole - right) <= _LEFT * np.linalg.norm(right):
        return None
    for i, j in itertools.permutations(range(count), 2):
        if time.process_time() > end:
            return None
        columns[:, i, j] = column(i, j)
    if not np.isfinite(columns).all():
        return None
    flat = columns.reshape(len(at), -1)
    read, _, rank, _ = np.linalg.lstsq(flat, wanted, rcond=1e-9)
    if rank < count * count or np.linalg.norm(flat @ read - wanted) > _LEFT * np.linalg.norm(wanted):
        return None
    near = np.rint(read)
    return near.reshape(count, count) if np.abs(read - near).max() <= _WHOLE else None


def _told(read: np.ndarray, length: int) -> str:
    """Say what is read in place of what."""
    count = len(read)
    what = f"block of {length}" if length > 1 else "slice"
    nothing = [i for i in range(count) if not read[i].any()]
    single = all(read[i].sum() == 1 and np.count_nonzero(read[i]) == 1 for i in range(count) if i not in nothing)
    source = [int(np.argmax(row)) for row in read]
    kept = [i for i in range(count) if i not in nothing]
    if nothing and all(source[i] == i for i in kept) and single:
        if kept == [0]:
            return f"the first {what} alone is read"
        if kept == [count - 1]:
            return f"the last {what} alone is read"
        return f"{_listed(nothing)} of {count} {'blocks of ' + str(length) if length > 1 else 'slices'} not read"
    if single and not nothing:
        if set(source) == {source[0]}:
            which = {0: "the first", count - 1: "the last"}.get(source[0], f"number {source[0]}")
            return f"{which} {what} is read again for all {count}"
        wrong = [i for i in range(count) if source[i] != i]
        pairs = ", ".join(f"{source[i]} for {i}" for i in wrong)
        return f"another {what} is read: {pairs}"
    rows = "; ".join(
        f"{i}: " + (" + ".join(f"{read[i, j]:g} x {j}" for j in np.flatnonzero(read[i])) or "nothing")
        for i in range(count)
        if not np.array_equal(read[i], np.eye(count)[i])
    )
    return f"a sum of other {what}s is read ({rows})"


def _listed(indices: list[int]) -> str:
    return ", ".join(map(str, indices))
