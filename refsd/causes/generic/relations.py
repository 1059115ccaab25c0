"""Express a wrong number as a simple function of the right one, or of the case's other numbers: root, reciprocal.

A number that was fitted to an engine's answer tells little by itself. Engines rarely have any number there: they
forget a root, take one parameter for another, or round to what their memory likes.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import ml_dtypes
import numpy as np

from refsd.causes.generic.solved_numbers import bits

_NEAR = 2e-5

_POWERS: dict[str, float] = {
    "square": 2.0,
    "root": 0.5,
    "reciprocal": -1.0,
    "fourth power": 4.0,
    "reciprocal's root": -0.5,
}
_OTHERS: dict[str, Callable[[float], float]] = {
    "1 less {}": lambda v: 1 - v,
    "1 more than {}": lambda v: v + 1,
    "1 taken from {}": lambda v: v - 1,
    "the root of 1 less {}": lambda v: math.sqrt(1 - v),
    "the root of 1 less {}'s square": lambda v: math.sqrt(1 - v * v),
    "the root of {}'s square plus 1": lambda v: math.sqrt(v * v + 1),
    "1 over the root of {}'s square plus 1": lambda v: 1 / math.sqrt(v * v + 1),
    "{}'s exponential": math.exp,
    "{}'s logarithm": math.log,
    "the next power of two above {}": lambda v: 2.0 ** math.ceil(math.log2(v)),
    "the next power of two below {}": lambda v: 2.0 ** math.floor(math.log2(v)),
    "{} cut to a whole number": math.trunc,
    "{} raised to a whole number": math.ceil,
    "{} of the other sign": lambda v: -v,
    **{f"{{}} rounded down to a multiple of {n}": lambda v, n=n: v // n * n for n in (8, 16, 32, 64)},
    **{f"{{}} rounded up to a multiple of {n}": lambda v, n=n: -(-v // n) * n for n in (8, 16, 32, 64)},
}
# Functions of each number of an array.
ELEMENTWISE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "squared": np.square,
    "by its root": np.sqrt,
    "by its reciprocal": lambda x: 1 / x,
    "by its absolute value": np.abs,
    "by its logarithm": np.log,
    "by 1 less it": lambda x: 1 - x,
    "raised to the next power of two": lambda x: _power_of_two(x, np.ceil),
    "lowered to the next power of two": lambda x: _power_of_two(x, np.floor),
    "cut to whole numbers": np.trunc,
    "rounded to whole numbers": np.rint,
    "rounded to float16": lambda x: x.astype(np.float16),
    "rounded to bfloat16": lambda x: x.astype(ml_dtypes.bfloat16),
    "rounded to 8 bits (e4m3)": lambda x: x.astype(ml_dtypes.float8_e4m3fn),
}


def _power_of_two(x: np.ndarray, rounded: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return np.where(x == 0, 0.0, np.sign(x) * 2.0 ** rounded(np.log2(np.abs(np.where(x == 0, 1.0, x)))))


def relation(value: float, right: float, others: Mapping[str, float]) -> str:
    """Return what `value` is of the right number, else of one of the others, as "its root"; "" if of none.

    A number that costs fewer bits than the choice among all functions of the others is none of these: it is itself.

    others: name -> number
    """
    if _same(value, right):
        return ""
    # What may be made of 1, the factor of a right input, says nothing.
    for phrase, made in _made("", right) if right != 1 else ():
        if _same(value, made):
            return phrase
    if not others:
        return ""
    among = math.log2(len(others))
    for name, of in others.items():
        if _same(value, of) and bits(value) > among:
            return f"the value of {name}"
    if bits(value) <= among + math.log2(len(_POWERS) + len(_OTHERS)):
        return ""
    for name, of in others.items():
        products = (f"multiplied by {name}", right * of), (f"divided by {name}", right / of if of else math.nan)
        for phrase, made in (*_made(name, of), *(products if of not in (0.0, 1.0, -1.0) else ())):
            if _same(value, made):
                return phrase
    return ""


def _made(name: str, of: float) -> Iterator[tuple[str, float]]:
    """Yield (phrase, number) of what may be made of a number."""
    for power, exponent in _POWERS.items():
        if of > 0:
            yield (f"{name}'s {power}" if name else f"its {power}"), of**exponent
    for phrase, change in _OTHERS.items():
        try:
            yield phrase.format(name or "it"), float(change(of))
        except (ValueError, OverflowError, ZeroDivisionError):
            continue


def _same(one: float, other: float) -> bool:
    return bool(np.isfinite(other)) and other != 0 and abs(one - other) <= _NEAR * abs(other)
