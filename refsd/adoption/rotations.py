"""RoPE in a graph: tables of cosines and sines, as the page of RoPE has it, with positions, axes and theta."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from refsd.causes.model.observed import Observed
from refsd.kernels.rope import rope_angles
from refsd.numerics.arithmetic import Arithmetic

Array = np.ndarray
# Positions are looked for from minus this to this.
_FARTHEST = 4096
# Cosines and sines that are apart by no more are of one angle, by the bytes of a number: of whole numbers, and of
# products with frequencies.
_NEAR = {4: (1e-6, 3e-4), 8: (1e-9, 1e-9)}
# Calls of Arithmetic that a turn counts for, also where it is one operation.
CALLS = 4


class Positions(NamedTuple):
    """As the page of RoPE takes them. ids: [N, L, A]"""

    ids: Array
    axes_dim: tuple[int, ...]
    theta: float


def turned(a: Arithmetic, p: Mapping[str, Any], x: Array, cos: Array, sin: Array) -> Array:
    """Rotate pairs of channels, neighbours or halves, of [N, L, H, D], [N, H, L, D] or [N, L, D].

    cos, sin: broadcast to x, each number twice; or once, [..., D / 2, 1]; or columns of matrices, [..., D / 2, 2]

    Where an engine rounds nothing between operations and the tables are a rotation's, this is the page's operation;
    elsewhere it is x cos + partner sin, step by step.
    """
    halves = p["halves"]
    if p.get("columns"):
        cos, sin = (
            np.stack(both, axis=-1).reshape(*cos.shape[:-2], -1)
            for both in ((cos[..., 0], sin[..., 1]), (-sin[..., 0], cos[..., 1]))
        )
    elif cos.shape[-1] == 1:
        cos, sin = (np.repeat(t[..., 0], 2, axis=-1) for t in (cos, sin))
    cos, sin = (t.reshape((1,) * (x.ndim - t.ndim) + t.shape) for t in (cos, sin))
    swapped = x.ndim == 4 and cos.shape[1] == 1 != x.shape[1]
    laid, *of = [_tokens_first(t, swapped) for t in (x, cos, sin)]
    tables = _of_pairs(laid, of[0], of[1], halves) if a.numerics.storage == a.numerics.compute else None
    if tables is None:
        partner = PARTNERS[halves](x, lambda t: a.multiply(np.ascontiguousarray(t), np.array(-1.0, t.dtype)))
        return a.add(a.multiply(x, cos), a.multiply(partner, sin))
    if isinstance(a, Observed):
        for _ in range(CALLS - 1):
            a.pass_over("apply")
    angle = np.arctan2(tables[1], tables[0])
    cosines, sines = (np.ascontiguousarray(t).tobytes() for t in tables)
    made_of = positions(cosines, sines, angle.shape, x.dtype.itemsize)
    if made_of is not None:  # what an engine's angles are off by
        angle += a.rope_angles(*made_of) - rope_angles(*made_of)
    turn = a.rope_halves if halves else a.rope
    y = turn(np.ascontiguousarray(laid), angle)
    return (y.swapaxes(1, 2) if swapped else y).reshape(x.shape)


def _other_halves(x: Array, negated: Callable[[Array], Array] = np.negative) -> Array:
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([negated(second), first], axis=-1)


def _neighbours(x: Array, negated: Callable[[Array], Array] = np.negative) -> Array:
    return np.stack([negated(x[..., 1::2]), x[..., ::2]], axis=-1).reshape(x.shape)


# Whether pairs are halves -> each channel's partner in its pair, that of the first one negated.
PARTNERS = {True: _other_halves, False: _neighbours}


def _tokens_first(t: Array, swapped: bool) -> Array:
    return t[:, :, None] if t.ndim == 3 else t.swapaxes(1, 2) if swapped else t


def _of_pairs(x: Array, cos: Array, sin: Array, halves: bool) -> tuple[Array, Array] | None:
    """Return cosines and sines in float64, [N or 1, L, D / 2]; None for each head's own, and for no rotation."""
    if x.ndim != 4 or not x.size:
        return None
    N, L, _, D = x.shape
    if cos.shape != sin.shape or cos.shape not in ((N, L, 1, D), (1, L, 1, D)):
        return None
    both = np.stack([cos[:, :, 0], sin[:, :, 0]]).astype(np.float64)
    first, second = np.split(both, 2, axis=-1) if halves else (both[..., ::2], both[..., 1::2])
    unit = np.abs((first**2).sum(0) - 1).max(initial=0) <= 16 * np.finfo(x.dtype).eps
    return (first[0], first[1]) if unit and np.array_equal(first, second) else None


@functools.lru_cache(8)
def positions(cos: bytes, sin: bytes, shape: tuple[int, int, int], width: int) -> Positions | None:
    """Return whole positions of which angles are made, as RoPE makes them; None if they are made otherwise.

    cos, sin: of the angles in float64, [N, L, D / 2] = shape
    width:    bytes of a number of the tables
    """
    wholly, near = _NEAR[width]
    z = np.frombuffer(cos) + 1j * np.frombuffer(sin)
    z = z.reshape(shape)
    whole = np.arange(-_FARTHEST, _FARTHEST + 1)
    turns = np.angle(np.exp(1j * whole))
    order = np.argsort(turns)
    at = np.searchsorted(turns[order], np.angle(z))
    around = order[np.stack([at - 1, at % len(order)])]
    nearest = np.abs(np.exp(1j * whole[around]) - z).argmin(0)
    ids = whole[np.take_along_axis(around, nearest[None], 0)[0]]
    # An axis starts where each token's angle is a whole number; one of positions 0 goes on until another starts.
    starts = np.abs(np.exp(1j * ids) - z).max((0, 1)) <= wholly
    still = (np.abs(ids).max((0, 1)) == 0) & starts
    starts[1:] &= ~(still[1:] & still[:-1])
    if not starts[0]:
        return None
    first = np.flatnonzero(starts)
    sizes = np.diff(np.append(first, shape[-1]))
    ids, axes_dim = ids[..., first], tuple(int(2 * n) for n in sizes)
    theta = 10000.0
    moving = [axis for axis in range(len(first)) if sizes[axis] > 1 and ids[..., axis].any()]
    if moving:
        axis = max(moving, key=lambda axis: sizes[axis])
        p, last = ids[..., axis], z[..., first[axis] + sizes[axis] - 1]
        n, token = np.unravel_index(np.where(p == 0, _FARTHEST, np.abs(p)).argmin(), p.shape)
        frequency = np.angle(last[n, token]) / p[n, token]
        if frequency <= 0:
            return None
        theta = float(frequency ** (-sizes[axis] / (sizes[axis] - 1)))
    tried = (Positions(ids, axes_dim, value) for value in (float(f"{theta:.4g}"), theta))
    return next((one for one in tried if np.abs(np.exp(1j * rope_angles(*one)) - z).max() <= near), None)
