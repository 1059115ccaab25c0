"""Solve for the numbers with which the reference gives an engine's answer, and say what such a number costs."""

import math
from collections.abc import Callable, Sequence

import numpy as np

_STEPS = 8
# The least cosine between the error and the first step's effect: below it another number is wrong.
_ALONG = 0.5
_DELTA = 1e-5
# Numbers so near one another are the same.
_SAME = 2e-5
# A number of more bits is none that somebody would write down: four digits have 13.
PLAIN = 11.0
# The chance of a coincidence that is taken, of numbers that are spread over so many decades.
_CHANCE, _DECADES = 0.01, 4
_KNOWN = {
    math.pi: "pi",
    math.pi / 2: "pi / 2",
    2 * math.pi: "2 pi",
    math.sqrt(2): "the root of 2",
    math.log(10): "ln 10",
    math.e: "e",
    0.18215: "the latent scale of SD 1",
    1 / 0.18215: "1 over the latent scale of SD 1",
    0.13025: "the latent scale of SDXL",
    1 / 0.13025: "1 over the latent scale of SDXL",
    1.5305: "the latent scale of SD 3",
    0.0609: "the latent shift of SD 3",
    0.3611: "the latent scale of Flux",
    0.1159: "the latent shift of Flux",
    1.5305 * 0.0609: "the latent scale times the latent shift of SD 3",
    0.3611 * 0.1159: "the latent scale times the latent shift of Flux",
    14.6146: "the highest sigma of SD",
    0.029167: "the lowest sigma of SD",
    127.5: "half of 255",
}


def solved(values: Sequence[float], error_of: Callable[[np.ndarray], np.ndarray | None]) -> np.ndarray | None:
    """Find by Gauss-Newton the numbers near `values` with the least error; None if they hardly change the error.

    error_of: numbers -> found less the answer with them, flat, in units of the bound; None where there is no answer
    """
    best = np.array(values, np.float64)
    error = error_of(best)
    if error is None or not error.any():
        return None
    for step in range(_STEPS):
        slopes = _slopes(best, error, error_of)
        length = float(np.linalg.norm(error))
        if slopes is None or not length:
            return None if step == 0 or slopes is None else best
        change, _, rank, _ = np.linalg.lstsq(slopes, error, rcond=1e-9)
        if rank < len(best):
            return None if step == 0 else best
        if step == 0 and np.linalg.norm(slopes @ change) < _ALONG * length:
            return None
        for _ in range(6):  # halve the step if it makes the error larger
            tried = error_of(best + change)
            if tried is not None and np.isfinite(tried).all() and np.linalg.norm(tried) < length:
                break
            change = change / 2
        else:
            return best if step else None
        best, error = best + change, tried
        if (np.abs(change) <= 1e-9 * np.abs(best)).all():
            break
    return best


def _slopes(
    best: np.ndarray, error: np.ndarray, error_of: Callable[[np.ndarray], np.ndarray | None]
) -> np.ndarray | None:
    """Return the derivative of the answer by each number, one column each; None if it has none."""
    columns = []
    for i, value in enumerate(best):
        delta = _DELTA * (abs(value) or 1.0)
        moved = error_of(best + delta * (np.arange(len(best)) == i))
        if moved is None or not np.isfinite(moved).all():
            return None
        columns.append((error - moved) / delta)
    return np.stack(columns, axis=1)


def shown(value: float) -> str:
    """Format a number with as few digits as needed, and its name, if it is a known one."""
    for known, name in _KNOWN.items():
        if abs(abs(value) - known) <= _SAME * known:
            return f"{value:.6g} ({name})"
    for digits in range(1, 7):
        text = f"{value:.{digits}g}"
        if abs(float(text) - value) <= _SAME * abs(value):
            return f"{float(text):g}"
    return f"{value:.6g}"


def bits(value: float) -> float:
    """Return the bits that it takes to write a number: digits and exponent, a fraction, a power of 2, or a name.

    As a float32 it takes 32.

    This is the price of a number that was fitted. A relation to other numbers must cost less (relations.py), and
    of two numbers that explain the same error the cheaper one is likelier.
    """
    size = abs(float(value))
    if not size or not math.isfinite(size):
        return 1.0
    text = shown(size)
    if "(" in text:
        return 1 + math.log2(len(_KNOWN))
    written = len(text.partition("e")[0].replace(".", "").strip("0"))
    costs = [32.0, written * math.log2(10) + abs(math.floor(math.log10(size)))]
    for n in range(1, 13):
        if size * n >= 1 and abs(size * n - round(size * n)) <= _SAME * size * n:
            costs.append(math.log2(round(size * n) + 1) + (2 * math.log2(n) + 1 if n > 1 else 0))
    exponent = math.log2(size)
    if abs(exponent - round(exponent)) <= _SAME:
        costs.append(3 + math.log2(abs(exponent) + 1))
    return min(costs)


def is_plain(value: float) -> bool:
    """Return True for a number that somebody would write down."""
    return bits(value) < PLAIN


def is_certain(tried: int, unsure: float) -> bool:
    """Return False if one of so many numbers would agree by chance. unsure: decades within which it agrees"""
    return tried * unsure < _CHANCE * _DECADES
