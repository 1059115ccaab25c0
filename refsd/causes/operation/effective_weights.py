"""Find the weights with which a product gives the engine's answer, and which of the right ones they are.

A product is linear in its weights: least squares over all rows give the weight that the engine used for each tap of
each filter. Where these are right weights at other taps, or none, the bug has a name.
"""

import math
from collections.abc import Iterator

import numpy as np

from refsd.golden.mutations import answer
from refsd.golden.operation import Inputs, Operation, Params
from refsd.numerics.tensor import stored

# Numbers of the matrix to be solved, at the most.
_MOST = 1 << 23
_SURE, _SAME = 1e-4, 2e-3
_LISTED = 4
# The largest factor, and the largest offset, that make one range of another.
_RANGE = 1e4


def effective_weights(
    op: Operation, inputs: Inputs, params: Params, found: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) if other right weights stand at some taps. params: complete"""
    if op.name not in ("linear", "conv2d") or not np.isfinite(found).all():
        return
    values = {name: tensor.values().astype(np.float64) for name, tensor in inputs.items()}
    x, weight = values["x"], values["weight"]
    if not np.isfinite(x).all():
        return
    bias = values.get("bias", np.zeros(len(weight)))
    if op.name == "linear":
        rows, wanted = x.reshape(-1, x.shape[-1]), found.reshape(-1, len(weight)) - bias
        taps = weight.T[:, None]
    else:
        if params.get("groups", 1) != 1:
            return
        side = max(weight.shape[2:])
        patches = _patches(x, weight.shape[2:], side, found.shape[2:], params)
        if patches is None:
            return
        rows = patches
        wanted = np.moveaxis(found, 1, -1).reshape(-1, len(weight)) - bias
        wide = np.zeros((*weight.shape[:2], side, side))
        wide[:, :, : weight.shape[2], : weight.shape[3]] = weight
        taps = wide.transpose(2, 3, 1, 0).reshape(side * side, *weight.shape[1::-1])
    K = rows.shape[1]
    if len(rows) < K + 8 or rows.size > _MOST:
        return
    own, _, rank, _ = np.linalg.lstsq(rows, wanted, rcond=1e-10)
    if rank < K or np.linalg.norm(rows @ own - wanted) > _SURE * np.linalg.norm(wanted):
        return
    read = _matched(own.reshape(taps.shape), taps)
    if read is None or np.array_equal(read, np.arange(len(taps))):
        return
    chosen = np.where((read >= 0)[:, None, None], taps[read], 0).reshape(K, -1)
    y = rows @ chosen + bias
    y = y.reshape(found.shape) if op.name == "linear" else np.moveaxis(y.reshape(_rows_of(found)), -1, 1)
    yield _told(read, weight), y.astype(np.float32)


def affine_inputs(
    op: Operation, inputs: Inputs, params: Params, found: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, wrong answer) if an input is a multiple of itself plus a number, as 0..1 for -1..1."""
    if not np.isfinite(found).all():
        return
    for name, tensor in inputs.items():
        x = tensor.values()
        if x.dtype.kind != "f" or name in ("weight", "bias") or not np.isfinite(x).all():
            continue

        def run(y: np.ndarray, name: str = name) -> np.ndarray:
            return answer(op, {**inputs, name: stored(np.ascontiguousarray(y, np.float32))}, params)

        base = run(np.zeros_like(x)).astype(np.float64)
        if base.shape != found.shape:
            continue
        both = np.stack([(run(y) - base).ravel() for y in (x, np.ones_like(x))], axis=1)
        if not np.isfinite(both).all() or np.linalg.matrix_rank(both) < 2:
            continue
        (a, b), *_ = np.linalg.lstsq(both, (found - base).ravel(), rcond=None)
        a, b = (round(v, 3) if abs(v - round(v, 3)) < 1e-4 else v for v in (float(a), float(b)))
        if a and b and (a != 1 or abs(b) > 1e-3) and max(abs(a), abs(b)) < _RANGE:
            yield f"{name} is {a:.6g} times itself {'plus' if b > 0 else 'less'} {abs(b):.6g}", run(a * x + b)


def _rows_of(found: np.ndarray) -> tuple[int, ...]:
    N, O, P, Q = found.shape
    return N, P, Q, O


def _patches(
    x: np.ndarray, taps: tuple[int, ...], side: int, out: tuple[int, ...], params: Params
) -> np.ndarray | None:
    """Return [N P Q, side side C]: what lies under a square of taps as wide as the filter's longer side."""
    top, bottom, left, right = params["padding"]
    stride, dilation = (
        params[name] if isinstance(params[name], tuple) else (params[name],) * 2 for name in ("stride", "dilation")
    )
    if math.prod(out) * len(x) * side * side * x.shape[1] > _MOST:
        return None
    more = [(side - n) * d for n, d in zip(taps, dilation, strict=True)]
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom + more[0]), (left, right + more[1])))
    parts = [
        padded[
            :,
            :,
            r * dilation[0] : r * dilation[0] + (out[0] - 1) * stride[0] + 1 : stride[0],
            s * dilation[1] : s * dilation[1] + (out[1] - 1) * stride[1] + 1 : stride[1],
        ]
        for r in range(side)
        for s in range(side)
    ]
    if any(part.shape[2:] != out for part in parts):
        return None
    return np.stack(parts, axis=1).transpose(0, 3, 4, 1, 2).reshape(-1, side * side * x.shape[1])


def _matched(own: np.ndarray, right: np.ndarray) -> np.ndarray | None:
    """Return for each tap the one whose weights stand there, its own if possible; -1: none; None if unclear."""
    size = float(np.sqrt(np.mean(right**2)))
    read = np.empty(len(own), int)
    for k, one in enumerate(own):
        near = np.sqrt(np.mean((right - one) ** 2, axis=(1, 2)))
        near[k] = near[k] if near[k] > _SAME * size else -1
        best = int(np.argmin(near))
        if np.sqrt(np.mean(one**2)) <= _SAME * size:
            read[k] = k if not right[k].any() else -1
        elif near[best] <= _SAME * size:
            read[k] = best
        else:
            return None
    return read


def _told(read: np.ndarray, weight: np.ndarray) -> str:
    moved = np.flatnonzero(read != np.arange(len(read)))
    if weight.ndim == 2:
        side, what, others = 0, "input", "inputs"
    else:
        side, what, others = max(weight.shape[2:]), "tap of the filter", "taps of the filter"

    def name(k: int) -> str:
        return f"[{k // side}, {k % side}]" if side else str(k)

    if (read[moved] < 0).all():
        listed = ", ".join(name(int(k)) for k in moved[:_LISTED])
        more = f" and {len(moved) - _LISTED} more" if len(moved) > _LISTED else ""
        return f"{what} {listed}{more} of {len(read)} not read"
    pairs = ", ".join(
        f"{name(int(k))} has the weights of {name(int(read[k]))}" for k in moved[read[moved] >= 0][:_LISTED]
    )
    return f"weights stand at other {others}: {pairs}"
