"""Read a tensor's memory as that of another layout: axes exchanged, rows at another stride, groups for items."""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, product

import numpy as np

from refsd.causes.generic.orders import BLOCKS
from refsd.golden.operation import Params

# Parameters that divide axis 1, the channels, into so many groups.
_GROUPS = ("groups", "num_groups")
# Sides of the tiles in which layouts store a matrix.
_TILES = (4, 4), (8, 8), (16, 16), (4, 8), (8, 4), (8, 16), (16, 8)


def reread(x: np.ndarray, one: int, other: int) -> np.ndarray:
    """Read the flat data as a tensor with the two axes swapped."""
    shape = [*x.shape]
    shape[one], shape[other] = shape[other], shape[one]
    return np.ascontiguousarray(x).reshape(shape).swapaxes(one, other)


def restored(x: np.ndarray, one: int, other: int) -> np.ndarray:
    """Store the tensor with the two axes swapped, and read it in the right shape."""
    return np.ascontiguousarray(x.swapaxes(one, other)).reshape(x.shape)


def last_of_first(x: np.ndarray) -> np.ndarray:
    """Read memory in which axis 1 lies last as if it did not."""
    return np.moveaxis(x, 1, -1).reshape(x.shape)


def first_of_last(x: np.ndarray) -> np.ndarray:
    """Read memory in which axis 1 does not lie last as if it did."""
    return np.moveaxis(x.reshape(np.moveaxis(x, 1, -1).shape), -1, 1)


def of_tiles(name: str, x: np.ndarray) -> Iterator[tuple[str, Callable]]:
    """Yield changes of layouts for tiles: each whole square transposed, or tiles one behind the other."""
    for high, wide in _TILES if x.ndim > 1 and min(x.shape[-2:]) > 1 else ():
        outer, rows, columns = x.shape[:-2], x.shape[-2] // high, x.shape[-1] // wide
        view, whole = (*outer, rows, high, columns, wide), np.s_[..., : rows * high, : columns * wide]

        def turned(x: np.ndarray, view=view, whole=whole) -> np.ndarray:
            y = np.copy(x)
            y[whole] = x[whole].reshape(view).swapaxes(-3, -1).reshape(x[whole].shape)
            return y

        if high == wide:
            yield f"{name}: every square of {high} x {wide} is transposed", turned
        ways = {"read": (*outer, rows, columns, high, wide), "stored": view} if x[whole].size == x.size else {}
        for words, shape in ways.items() if columns > 1 else ():
            phrase = f"{name}: {words} as tiles of {high} x {wide}, one behind the other"
            yield phrase, lambda x, s=shape: x.reshape(s).swapaxes(-3, -2).reshape(x.shape)


def of_strides(name: str, x: np.ndarray) -> Iterator[tuple[str, Callable]]:
    """Yield changes where rows of n numbers are sought nearer or farther than n numbers behind one another."""
    if x.ndim < 2 or x.shape[-2] < 2 or x.shape[-1] < 2:
        return
    n = x.shape[-1]
    for axis, L in [*enumerate(x.shape[:-1])][::-1]:
        own = math.prod(x.shape[axis + 1 :])
        near = (1, own - 1, own + 1, 2 * own, L) if own == n else (own - n, own + n)
        words = "its rows are" if own == n else f"axis {axis} is"
        for stride in dict.fromkeys(stride for stride in near if stride not in (0, own) and L > 1):
            phrase = f"{name}: {words} sought at a stride of {stride} numbers, not {own}"
            yield (
                phrase,
                lambda x, s=stride, a=axis: read_on(x.reshape(*x.shape[: a + 1], -1), s, x.shape[a]).reshape(
                    x.shape
                ),
            )
    for k, step in product((k for k in (2, 4, 8, 16) if k < n and n % k == 0), (0.5, 2, 4)):
        phrase = f"{name}: rows are read {k} at a time, from an address that advances by {step * k:g}"
        tiled = lambda x, k=k, step=int(step * k): read_on(x.reshape(-1, n // k, k), step, n // k)
        yield phrase, lambda x, tiled=tiled: tiled(x).reshape(x.shape)
    if x.ndim > 2:
        phrase = f"{name}: its rows are sought at a stride of 1 number, not {n}, from where the first item begins"
        yield phrase, lambda x: read_on(x, 1, x.size // x.shape[-1])
    for block in (1 << 16, 1 << 15, 4, *BLOCKS):  # an index in 16 bits, then vectors
        if 0 < x.size % block < block < x.size:
            phrase = f"{name}: behind whole {block}s of its numbers it is read from its beginning again"
            yield phrase, lambda x, b=block: x.ravel()[np.arange(x.size) % (x.size // b * b)].reshape(x.shape)


def read_on(x: np.ndarray, stride: int, L: int) -> np.ndarray:
    """Read rows at another stride, L from where their item begins; the memory goes on, and ends with zeros."""
    n = x.shape[-1]
    flat = np.ascontiguousarray(x).ravel()
    first = np.arange(x.size // (L * n))[:, None] * L * n + np.arange(L) * stride
    at = first[..., None] + np.arange(n)
    y = flat.take(at, mode="clip")
    y[at >= flat.size] = 0
    return y.reshape(x.shape)


def of_other_strides(inputs: Mapping[str, np.ndarray]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yield two inputs whose rows are as many but not as long, one or each read at the distance of the other's."""
    for one, other in combinations([name for name, x in inputs.items() if x.ndim > 2 and x.dtype.kind == "f"], 2):
        rows = {name: inputs[name].reshape(*inputs[name].shape[:2], -1) for name in (one, other)}
        long = {name: x.shape[2] for name, x in rows.items()}
        if inputs[one].shape[:2] == inputs[other].shape[:2] and long[one] != long[other]:
            strides = {one: long[other], other: long[one]}
            read = {name: read_on(x, strides[name], x.shape[1]) for name, x in rows.items()}
            phrase = f"rows of {one} are sought at the stride of {other}'s, and the reverse"
            yield phrase, {name: x.reshape(inputs[name].shape) for name, x in read.items()}
        for name, stride in ((one, inputs[other].shape[-1]), (other, inputs[one].shape[-1])):
            if inputs[one].shape[:-1] == inputs[other].shape[:-1] and stride != inputs[name].shape[-1]:
                x = inputs[name].reshape(1, -1, inputs[name].shape[-1])
                read = read_on(x, stride, x.shape[1]).reshape(inputs[name].shape)
                yield f"{name}: its rows are sought at a stride of {stride} numbers, as the other's", {name: read}


def of_groups(name: str, x: np.ndarray, params: Params, axes: list[str]) -> Iterator[tuple[str, Callable]]:
    """Yield changes where the groups that a parameter makes of an axis change places with the items."""
    for param, count in params.items():
        if param not in _GROUPS or not isinstance(count, int) or count < 2 or x.ndim < 3 or x.shape[0] < 2:
            continue
        axis = 1
        if x.shape[axis] % count == 0:
            which = f"{name}: items and {param} (of axis {axes[axis] or axis})"
            split = (x.shape[0], count, x.shape[1] // count, *x.shape[2:])
            for words, read in (("exchanged in memory", reread), ("stored in the other order", restored)):
                yield (f"{which} {words}", lambda x, s=split, r=read: r(x.reshape(s), 0, 1).reshape(x.shape))


def of_tokens(name: str, x: np.ndarray) -> Iterator[tuple[str, Callable]]:
    """Yield changes of what belongs to tokens: positions counted."""
    if x.dtype.kind in "iu" and x.ndim > 1 and x.shape[-2] > 1:
        count = lambda x: np.broadcast_to(np.arange(x.shape[-2])[:, None], x.shape).astype(x.dtype)
        yield f"{name} not read: positions are counted, 0, 1, 2, ...", count
