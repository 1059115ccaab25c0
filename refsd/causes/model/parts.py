"""What a tensor holds in a given shape: itself, its equal parts, its slices."""

import math
from collections.abc import Iterator

import numpy as np

_MOST = 6  # parts, or slices that are all tried


def parts(y: np.ndarray, shape: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, values): the tensor in this shape, or its equal parts of that size along the last axis."""
    size = math.prod(shape)
    if y.ndim == 4 and y.size == size and len(shape) > 2 and shape[1] == math.prod(y.shape[2:]):
        # Pixels of a picture, read as tokens.
        tokens = np.asarray(y, np.float32).reshape(*y.shape[:2], -1).swapaxes(1, 2)
        yield "", np.ascontiguousarray(tokens).reshape(shape)
    if not size or not y.ndim or y.size % size or y.shape[-1] % (y.size // size):
        return
    count = y.size // size
    if count > _MOST:
        return
    for i, part in enumerate(np.split(np.asarray(y, np.float32), count, axis=-1)):
        yield "" if count == 1 else f"part {i + 1} of {count} of ", np.ascontiguousarray(part).reshape(shape)


def slices(y: np.ndarray, shape: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, values): one slice of a few, or the first or last, if all but one axis have the shape."""
    for axis, n in enumerate(y.shape):
        if (*y.shape[:axis], *y.shape[axis + 1 :]) == shape:
            few = {f"slice {i + 1} of {n}": i for i in range(n)} if n <= _MOST else {}
            for words, i in (few or {"the first slice": 0, "the last slice": n - 1}).items():
                yield f"{words} along axis {axis} of ", y.take(i, axis).astype(np.float32)
        m = shape[axis] if y.ndim == len(shape) else n
        if m < n and (*y.shape[:axis], m, *y.shape[axis + 1 :]) == shape:
            for words, first in (("the first", 0), ("the last", n - m)):
                values = np.take(y, np.arange(first, first + m), axis)
                yield f"{words} {m} of {n} slices of ", np.ascontiguousarray(values, np.float32)
