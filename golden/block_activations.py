"""Activations in blocks of 8-bit codes: the step of each, engines that round otherwise, and how they show.

An honest code is the nearest: its error is within half a step, and of either sign. Codes that are all truncated
shrink every number by half a step on average, which is as large as what the bound of an element allows. So the
error of the answer is projected on the effect of the bug, as projections.py does it for taps, and the size that
honest roundings may have follows from the steps:

    y = W x:  size = sum_ro p_ro e_ro,  p = d / s^2 / sum (d / s)^2,  variance = sum_rk (p W)_rk^2 step_rk^2 / 12
"""

from collections.abc import Callable, Iterator

import numpy as np

from refsd.golden.rounding import Bound, Pattern
from refsd.kernels.quant import BLOCK_TYPES
from refsd.numerics.quantization import Quantization

_LARGEST = 127
# ggml stores the scale of such a block in float16: an error that all its numbers share.
_SCALE = 2.0**-11
_CODES = ("q8_0", "q8_1", "q8_k")


def block_of(through: str | Quantization | None) -> int:
    """Return how many activations share a scale, max |x| / 127; 0 where they are not rounded so."""
    if isinstance(through, Quantization):
        plain = through.type == "int8" and through.scale == "none" and not (through.rotation or through.largest)
        return through.block if plain and through.rounding != "zero" else 0
    return BLOCK_TYPES[through].block if through in _CODES else 0


def steps(x: np.ndarray, block: int) -> np.ndarray:
    """Return the step of each number's codes. x: float64 [..., K], K whole blocks -> the same"""
    return np.repeat(np.abs(x.reshape(*x.shape[:-1], -1, block)).max(axis=-1) / _LARGEST, block, axis=-1)


def _of_128(x: np.ndarray, step: np.ndarray) -> np.ndarray:
    """The code of the largest number would be 128, which is cut; -128 is not."""
    step = step * (_LARGEST / 128)
    return np.clip(np.rint(_codes(x, step)), -128, _LARGEST) * step


def _codes(x: np.ndarray, step: np.ndarray) -> np.ndarray:
    return np.divide(x, step, out=np.zeros_like(x), where=step > 0)


# x, step -> the activations of an engine that rounds otherwise.
OTHERWISE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    # A scale's last bit may put the largest number below its own code, to be truncated, too.
    "activations truncated to their codes, not rounded": lambda x, step: np.trunc(_codes(x, step)) * step,
    "activations' scale max |x| / 128, not / 127": _of_128,
}


def moved_otherwise(x: np.ndarray, block: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each bug with x as an engine that has it rounds it. x: [..., K], K whole blocks"""
    wide = x.astype(np.float64)
    step = steps(wide, block)
    for name, change in OTHERWISE.items():
        yield name, change(wide, step)


def patterns(bound: Bound, x: np.ndarray, W: np.ndarray, block: int, other: np.ndarray) -> tuple[Pattern, ...]:
    """Return what the known bugs add to y = W x on average, with what honest codes give of it.

    x [..., K], W [O, K] in float64; other: the spread of y that is not from codes
    """
    rows = x.reshape(-1, x.shape[-1])
    step = steps(rows, block)
    largest = np.abs(rows) >= _LARGEST * step * (1 - 2.0**-20)
    shrunk = -np.sign(rows) * np.where(largest, 0.0, step / 2)
    effects = (shrunk, np.where(largest & (rows > 0), -step, 0.0))
    s2 = np.square(bound.limit.reshape(len(rows), -1))
    found = []
    for name, effect in zip(OTHERWISE, effects, strict=True):
        d = effect @ W.T
        weighted = np.divide(d, s2, out=np.zeros_like(d), where=s2 > 0)
        total = float(np.einsum("ro,ro->", weighted, d))
        if not total or not np.isfinite(total):
            continue
        p = weighted / total
        c = p @ W
        of_scales = (c * rows).reshape(len(rows), -1, block).sum(axis=-1) * _SCALE
        variance = np.sum(np.square(c * step)) / 12 + np.sum(np.square(of_scales)) / 3
        variance += np.sum(np.square(p * np.broadcast_to(other, bound.limit.shape).reshape(p.shape)))
        found.append(Pattern(name, p.reshape(bound.limit.shape), float(np.sqrt(variance))))
    return tuple(found)
