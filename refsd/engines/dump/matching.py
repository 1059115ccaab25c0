"""Tensors of other names and layouts: which of the reference's taps each is, told by shape and content."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

Tensors = Mapping[str, np.ndarray]

# A tensor is a tap if it is as near as this (relative L2), and no other tap of its size is half as near.
_NEAR, _CLEAR = 0.3, 2.0
_PARTS = 3  # of a fused q, k, v


class Match(NamedTuple):
    """
    name:   of the tensor in the dump
    taps:   the reference's, by name: one, or three where q, k and v are fused
    layout: how it lay there, in words; "" if as the reference has it
    """

    name: str
    taps: dict[str, np.ndarray]
    layout: str

    def __str__(self) -> str:
        return f"{self.name} is {', '.join(self.taps)}{f' ({self.layout})' if self.layout else ''}"


def _channels_last(y: np.ndarray) -> np.ndarray:
    return np.moveaxis(y, -1, 1) if y.ndim > 2 else y


# How a tensor may lie -> back to the reference's order of elements.
_LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda y: y,
    "channels last": _channels_last,
    "axes reversed": np.transpose,
}


def match(tensors: Tensors, reference: Tensors) -> list[Match]:
    """Those of the tensors that are taps of the reference; each tap is given once, in the dump's order."""
    left = {name: np.asarray(y, np.float64) for name, y in reference.items() if y.size > 1 and np.isfinite(y).all()}
    matches = []
    for name, y in tensors.items():
        found = _whole(name, y, left) or _fused(name, y, left)
        if found is not None:
            matches.append(found)
            left = {tap: z for tap, z in left.items() if tap not in found.taps}
    return matches


def _whole(name: str, y: np.ndarray, reference: Tensors) -> Match | None:
    """The one tap that a tensor is; None where none is near, or two are."""
    tries = [
        (_distance(laid, tap), layout, at, laid)
        for at, tap in reference.items()
        if tap.size == y.size
        for layout, turn in _LAYOUTS.items()
        if (laid := turn(y)).shape == tap.shape or not layout
    ]
    if not tries:
        return None
    distance, layout, at, laid = min(tries, key=lambda one: one[0])
    # A block's output is that of its last operation: two taps of one content are the same to us.
    others = [one[0] for one in tries if not np.array_equal(reference[one[2]], reference[at])]
    if distance > _NEAR or (others and min(others) < _CLEAR * max(distance, 1e-9)):
        return None
    return Match(name, {at: laid.reshape(reference[at].shape)}, layout)


def _fused(name: str, y: np.ndarray, reference: Tensors) -> Match | None:
    """q, k and v side by side along the last axis; None where that is not what a tensor is."""
    if y.ndim < 2 or y.shape[-1] % _PARTS:
        return None
    parts = [_whole(name, part, reference) for part in np.split(y, _PARTS, axis=-1)]
    taps = {tap: z for part in parts if part is not None for tap, z in part.taps.items()}
    return Match(name, taps, "fused") if len(taps) == _PARTS else None


def _distance(y: np.ndarray, truth: np.ndarray) -> float:
    y = np.asarray(y, np.float64).reshape(truth.shape)
    size = float(np.linalg.norm(truth))
    apart = float(np.linalg.norm(y - truth)) if np.isfinite(y).all() else math.inf
    return apart / size if size else math.inf
