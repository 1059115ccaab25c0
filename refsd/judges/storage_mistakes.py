"""Recognise an answer that is right but stored otherwise: axes in another order, another shape, half precision."""

import itertools

import numpy as np

from refsd.golden.judge import Answer, Judge, Standard
from refsd.golden.verdict import judge
from refsd.numerics.arithmetic import Arithmetic
from refsd.numerics.profiles import TORCH_BF16, TORCH_F16

# dtype of a dump -> the numerics that store so
_HALF = {"float16": TORCH_F16, "bfloat16": TORCH_BF16}
_NAMED: dict[tuple[int, ...], str] = {
    (0, 3, 1, 2): "it is NHWC for NCHW",
    (3, 2, 1, 0): "its axes are reversed, as ggml counts them",
}
# Relative L2 above which an order of the axes is not considered: half precision stays below it.
_NEAR = 0.05
_MOST_AXES = 5


def storage_mistake(kind: Judge, standard: Standard, actual: Answer) -> str:
    """The phrase for an answer that conforms once it is read otherwise; "" if no reading makes it conform.

    "y agrees after transpose(0, 3, 1, 2): it is NHWC for NCHW"
    "stored as float16: it conforms under --numerics torch-f16"
    """
    truth = standard.truth
    if not truth or any(name not in actual for name in truth):
        return ""
    read = {name: _read(name, np.asarray(actual[name]), y) for name, y in truth.items()}
    if any(one is None for one in read.values()):
        return ""
    arrays = {name: one[0] for name, one in read.items() if one is not None}
    phrases = [one[1] for one in read.values() if one is not None and one[1]]
    if phrases and judge(kind.measure(standard, arrays)).passed:
        return "; ".join(phrases)
    halves = {str(y.dtype) for y in arrays.values()} & _HALF.keys()
    for dtype in sorted(halves):
        numerics = _HALF[dtype]
        if standard.numerics.storage == dtype or kind.refuses(standard.case, numerics) is not None:
            continue
        honest = kind.answer(standard.case, standard.inputs, Arithmetic(numerics))
        under = standard._replace(numerics=numerics, honest={name: honest[name] for name in truth})
        if judge(kind.measure(under, arrays)).passed:
            phrases.append(f"stored as {dtype}: it conforms under --numerics {numerics.name}")
            return "; ".join(phrases)
    return ""


def _read(name: str, actual: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, str] | None:
    """The output in the truth's shape, and what was done to it; None where nothing comes near the truth."""
    if actual.size != truth.size or actual.ndim > _MOST_AXES:
        return None
    orders = itertools.permutations(range(actual.ndim)) if actual.ndim == truth.ndim else ()
    tries = [
        (
            actual.transpose(order),
            f"{name} agrees after transpose{order}{_why(order)}" if any(np.diff(order) < 0) else "",
        )
        for order in orders
        if tuple(actual.shape[axis] for axis in order) == truth.shape
    ]
    if actual.shape != truth.shape:
        tries.append((actual.reshape(truth.shape), f"{name} agrees after reshape{truth.shape}"))
    apart = [_distance(y, truth) for y, _ in tries]
    best = int(np.argmin(apart)) if apart else -1
    return tries[best] if apart and apart[best] < _NEAR else None


def _why(order: tuple[int, ...]) -> str:
    return f": {_NAMED[order]}" if order in _NAMED else ""


def _distance(y: np.ndarray, truth: np.ndarray) -> float:
    """Relative L2 over what is finite in both."""
    y = np.asarray(y, np.float64)
    both = np.isfinite(y) & np.isfinite(truth)
    size = float(np.linalg.norm(truth[both]))
    return float(np.linalg.norm(y[both] - truth[both])) / size if size else np.inf
