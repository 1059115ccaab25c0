"""Solve for the number with which the reference gives an engine's answer."""

import math
from collections.abc import Callable

import numpy as np

_STEPS = 8
# The least cosine between the error and the first step's effect: below it another number is wrong.
_ALONG = 0.5
_DELTA = 1e-5
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
    255 / 256: "255 / 256",
}


def solved(value: float, error_of: Callable[[float], np.ndarray | None]) -> float | None:
    """Find by Newton's method the number near `value` with the least error; None if it hardly changes the error.

    error_of: a number -> found less the answer with it, flat, in units of the bound; None where there is no answer
    """
    error = error_of(value)
    if error is None or not error.any():
        return None
    best = value
    for step in range(_STEPS):
        delta = _DELTA * (abs(best) or 1.0)
        moved = error_of(best + delta)
        if moved is None or not np.isfinite(moved).all():
            return None
        slope = (error - moved) / delta
        size, length = float(slope @ slope), float(np.linalg.norm(error))
        if not size or not np.isfinite(size) or not length:
            return None if step == 0 else best
        along = float(slope @ error)
        if step == 0 and abs(along) < _ALONG * math.sqrt(size) * length:
            return None
        change = along / size
        for _ in range(6):  # halve the step if it makes the error larger
            tried = error_of(best + change)
            if tried is not None and np.isfinite(tried).all() and np.linalg.norm(tried) < length:
                break
            change /= 2
        else:
            return best if step else None
        best, error = best + change, tried
        if abs(change) <= 1e-9 * abs(best):
            break
    return best


def shown(value: float) -> str:
    """Format a number with as few digits as needed, and its name, if it is a known one."""
    for known, name in _KNOWN.items():
        if abs(abs(value) - known) <= 2e-5 * known:
            return f"{value:.6g} ({name})"
    for digits in range(1, 7):
        text = f"{value:.{digits}g}"
        if abs(float(text) - value) <= 2e-5 * abs(value):
            return f"{float(text):g}"
    return f"{value:.6g}"


def is_plain(value: float) -> bool:
    """Return True for a number that somebody would write down: few digits, a simple fraction, or a known one."""
    short = abs(float(f"{value:.3g}") - value) <= 2e-5 * abs(value)
    fraction = any(abs(value * n - round(value * n)) <= 2e-5 * abs(value * n) for n in range(1, 13))
    return short or fraction or "(" in shown(value)


def digits(value: float) -> int:
    """Count the significant digits of a number as it is shown; a known one counts as two."""
    text = shown(value)
    return 2 if "(" in text else len(text.partition("e")[0].replace(".", "").replace("-", "").strip("0")) or 1
