"""A random case, and the memory layouts in which an engine may be given its tensors."""

import re

import numpy as np

from refsd.golden.case import Case
from refsd.numerics.tensor import SCALAR_TYPES, StoredTensor

_NAME = re.compile(r"fuzz/(\d{1,19})/((?:(?:model|block)/)?[a-z0-9_-]+)/(\d{1,9})")


class RandomCase(Case, frozen=True):
    """
    layout: a key of LAYOUTS: how the tensors lie in memory, for engines that can take them so
    """

    layout: str = "contiguous"


def name_of(seed: int, op: str, number: int) -> str:
    return f"fuzz/{seed}/{op}/{number}"


def parse(name: str) -> tuple[int, str, int] | None:
    """The seed, operation and number of a random case's name; None for another name."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), match[2], int(match[3])) if match is not None else None


def _channels_last(x: np.ndarray) -> np.ndarray:
    """[N, H, W, C] in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1) if x.ndim >= 3 else x


def _transposed(x: np.ndarray) -> np.ndarray:
    """The last axis is not the fastest."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) if x.ndim >= 2 else x


def _every_second(x: np.ndarray) -> np.ndarray:
    """Every second number of a larger array; what lies between is NaN, or a large number."""
    wide = np.full((*x.shape, 2), np.nan if x.dtype.kind == "f" else 0, x.dtype)
    wide[..., 0] = x
    return wide[..., 0]


def _within(x: np.ndarray) -> np.ndarray:
    """A view into the middle of an array that is larger in every axis."""
    whole = np.full([size + 2 for size in x.shape], np.nan if x.dtype.kind == "f" else 0, x.dtype)
    view = whole[tuple(slice(1, -1) for _ in x.shape)]
    view[...] = x
    return view


LAYOUTS = {
    "contiguous": np.ascontiguousarray,
    "channels_last": _channels_last,
    "transposed": _transposed,
    "every_second": _every_second,
    "within": _within,
}


def lay_out(tensor: StoredTensor, layout: str) -> StoredTensor:
    """The same tensor with its elements elsewhere in memory; blocks stay as they are."""
    if tensor.type not in SCALAR_TYPES or not tensor.shape:
        return tensor
    return tensor._replace(data=LAYOUTS[layout](tensor.data))
