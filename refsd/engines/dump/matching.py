"""Identify which of the reference's taps a tensor is, by shape and content, whatever its name and layout."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

Tensors = Mapping[str, np.ndarray]

# A tensor matches a tap if their relative L2 distance is at most _NEAR, and if every other tap of that size is at
# least _CLEAR times as far away.
_NEAR, _CLEAR = 0.3, 2.0
PARTS = 3  # tensors in a fused q, k, v


class Match(NamedTuple):
    """A tensor of the dump and the taps that it holds.

    name:   name of the tensor in the dump
    taps:   tap name -> the tensor in the reference's layout: one tap, or three if q, k and v are fused
    layout: the tensor's layout in the dump, in words; "" if it is the reference's
    """

    name: str
    taps: dict[str, np.ndarray]
    layout: str

    def __str__(self) -> str:
        return f"{self.name} is {', '.join(self.taps)}{f' ({self.layout})' if self.layout else ''}"


# layout in the dump -> function that restores the reference's order of elements
_LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda y: y,
    "channels last": lambda y: np.moveaxis(y, -1, 1) if y.ndim > 2 else y,
    "axes reversed": np.transpose,
}


def match(tensors: Tensors, reference: Tensors) -> list[Match]:
    """Match the dump's tensors to the reference's taps, in the dump's order; each tap is matched at most once."""
    left = {name: np.asarray(y, np.float64) for name, y in reference.items() if y.size > 1 and np.isfinite(y).all()}
    matches = []
    for name, y in tensors.items():
        found = _whole(name, y, left) or _fused(name, y, left)
        if found is not None:
            matches.append(found)
            left = {tap: z for tap, z in left.items() if tap not in found.taps}
    return matches


def _whole(name: str, y: np.ndarray, reference: Tensors) -> Match | None:
    """Find the one tap that equals a tensor; None if no tap is near, or more than one is."""
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
    # A block and its last operation have the same output; taps with equal content do not compete.
    others = [one[0] for one in tries if not np.array_equal(reference[one[2]], reference[at])]
    if distance > _NEAR or (others and min(others) < _CLEAR * max(distance, 1e-9)):
        return None
    return Match(name, {at: laid.reshape(reference[at].shape)}, layout)


def _fused(name: str, y: np.ndarray, reference: Tensors) -> Match | None:
    """Split a tensor into q, k and v along its last axis and match each; None unless all three are taps."""
    if y.ndim < 2 or y.shape[-1] % PARTS:
        return None
    parts = [_whole(name, part, reference) for part in np.split(y, PARTS, axis=-1)]
    taps = {tap: z for part in parts if part is not None for tap, z in part.taps.items()}
    return Match(name, taps, "fused") if len(taps) == PARTS else None


def _distance(y: np.ndarray, truth: np.ndarray) -> float:
    y = np.asarray(y, np.float64).reshape(truth.shape)
    size = float(np.linalg.norm(truth))
    apart = float(np.linalg.norm(y - truth)) if np.isfinite(y).all() else math.inf
    return apart / size if size else math.inf
