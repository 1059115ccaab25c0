"""Fit constants to a wrong answer: the eps, scale, period, slope, factor or offset that explains it best.

No list of wrong constants is complete. So each number of an operation is a knob: search for the value with which
the answer comes nearest to the engine's, and report it, and the usual constants near it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from refsd.causes.generic.solved_numbers import is_certain, is_plain
from refsd.causes.operation.declared import letters
from refsd.golden.mutations import answer
from refsd.golden.operation import Inputs, Operation, Params
from refsd.numerics.errors import BadInput
from refsd.numerics.tensor import stored

_SAMPLE = 4096
_ROUNDS = 40
# Try the usual constants within this many decades of the best value.
_NEAR = 0.1
_NOTHING = 1e-6
# Decades within which two numbers are told as one.
_SAME = 2e-5
_FLAT = 1e-4
# The best value must leave less than this share of the error.
_CLEARLY = 0.3
# An answer is straight in a value if at these values it is on the line through the answers at 0 and 1, to this
# share of its size.
_ON_THE_LINE, _STRAIGHT = (-1.0, 0.5, 16.0), 1e-5
# Powers of an axis's length that engines multiply by.
_BATCH = "BN"
_POWERS = {"1/sqrt({})": -0.5, "1/({})": -1.0, "sqrt({})": 0.5, "{}": 1.0, "({})^(-1/4)": -0.25}


class Knob(NamedTuple):
    """A number of an operation that an engine may have wrong.

    phrase: what is wrong, with {} for the value
    own:    its right value
    turned: value -> the operation's answer
    grid:   values at which the search starts
    usual:  value -> its name: constants that engines are likely to have there
    roots:  value, its name: formulas of sizes, of which several cases may tell the one
    """

    phrase: str
    own: float
    turned: Callable[[float], np.ndarray]
    grid: np.ndarray
    usual: dict[float, str]
    roots: Sequence[tuple[float, str]] = ()


def fitted(op: Operation, inputs: Inputs, params: Params, actual: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (phrase, answer) of each knob: at up to three usual values near the best, then at the best itself.

    params: complete; actual: the engine's answer, finite
    """
    yield from _turned(_knobs(op, inputs, params), actual)


def fitted_through(
    op: Operation, inputs: Inputs, params: Params, through: Callable[[np.ndarray], np.ndarray], actual: np.ndarray
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the same of the operation's parameters, where later operations follow it.

    through: the operation's answer -> what they make of it; actual: the engine's result of them, in that shape
    """
    knobs = _parameters(op, inputs, params)
    yield from _turned((k._replace(turned=lambda v, k=k: through(k.turned(v)), roots=()) for k in knobs), actual)


def _turned(knobs: Iterable[Knob], actual: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what the knobs tell; a number that nobody would write down comes behind all that are plain."""
    fits: list[tuple[bool, str, np.ndarray]] = []
    for knob in knobs if np.isfinite(actual).all() else ():
        fit = _best(knob, actual)
        if fit is None:
            continue
        best, error = fit
        apart = {value: _apart(value, best) for value in knob.usual}
        near = sorted((value for value in apart if apart[value] < _NEAR), key=apart.__getitem__)[:3]
        # A usual number that agrees in fewer digits than the best is another number.
        near = [value for value in near if error(value) <= 2 * error(best) + _NOTHING * error(knob.own)]
        unsure = _apart(knob.own, best) * error(best) / (error(knob.own) or 1.0)
        for value in _distinct([value for value in (*near, best) if value != knob.own], knob.usual):
            called, certain = (
                knob.usual.get(value) or _told_apart(value, knob.own),
                is_certain(len(knob.usual), unsure),
            )
            if "sqrt" in called and not certain:
                called = _told_apart(value, knob.own)
            y = knob.turned(value)
            if y.shape == actual.shape:
                fits.append((value not in knob.usual and not is_plain(value), knob.phrase.format(called), y))
                also = [text for of, text in knob.roots if certain and text != called and _apart(value, of) < _SAME]
                fits += [(True, knob.phrase.format(text), y) for text in also]
    yield from ((phrase, y) for _, phrase, y in sorted(fits, key=lambda fit: fit[0]))


def _distinct(values: list[float], usual: Mapping[float, str]) -> list[float]:
    """Leave out numbers that are another's in all digits that are told, roots of lengths before plain numbers."""
    kept: list[float] = []
    for value in sorted(values, key=lambda value: "sqrt" not in usual.get(value, "")):
        if not any(_apart(value, other) < _SAME for other in kept):
            kept.append(value)
    return sorted(kept, key=values.index)


def _told_apart(value: float, own: float) -> str:
    """Format a value with enough digits to differ from the right one: 1.0003."""
    apart = abs(value - own) / max(abs(own), abs(value))
    digits = 4 if apart > _NEAR else 4 - math.floor(math.log10(max(apart, 1e-12)))
    return f"{value:.{digits}g}"


def _apart(value: float, best: float) -> float:
    """Return how far two numbers of one sign are apart, in decades; 0 for value 0 and a best value near 0."""
    if value == 0:
        return 0.0 if abs(best) < _NOTHING else math.inf
    return abs(math.log10(value / best)) if value * best > 0 else math.inf


def _parameters(op: Operation, inputs: Inputs, params: Params) -> Iterator[Knob]:
    sizes = _sizes(op, inputs)
    for name, value in params.items():
        own = _own(op, inputs, name, value)
        if own is None:
            continue
        roots = _roots(sizes) if name == "scale" and op.name in ("attention", "softmax") else []
        usual = _usual(own) | {value: root for value, root in reversed(roots) if not is_plain(value)}

        def turned(v, name=name):
            return answer(op, inputs, {**params, name: v})

        yield Knob(f"{name} is {{}}, not {own:.4g}", own, turned, _around(own), usual, roots)


def _knobs(op: Operation, inputs: Inputs, params: Params) -> Iterator[Knob]:
    yield from _parameters(op, inputs, params)
    right, around = answer(op, inputs, params), _around(1.0)
    factors = {value: root for value, root in reversed(_roots(_sizes(op, inputs))) if not is_plain(value)}
    factors = _usual(1.0) | factors | {-1.0: "-1 (its sign is the other)"}
    yield Knob("the result is multiplied by {}", 1.0, lambda k: (k * right).astype(np.float32), around, factors)
    for name, tensor in inputs.items():
        x = tensor.values()
        if x.dtype.kind != "f" or not np.isfinite(x).all():
            continue

        def changed(y, name=name):
            return answer(op, {**inputs, name: stored(y.astype(np.float32))}, params)

        yield Knob(f"{name} is multiplied by {{}}", 1.0, lambda k, x=x, c=changed: c(k * x), around, factors)
        usual = {v: f"{v:g}" for v in (-1.0, -0.5, 0.5, 1.0)}
        yield Knob(f"{{}} is added to {name}", 0.0, lambda k, x=x, c=changed: c(x + k), _around(0), usual)


def _own(op: Operation, inputs: Inputs, name: str, value: object) -> float | None:
    """Return the number that a parameter stands for; None if it is no float."""
    if value is None and name == "scale" and "q" in inputs:
        return inputs["q"].shape[-1] ** -0.5
    if value is None and name == "alpha":
        return None
    return float(value) if isinstance(value, float) else None


def _sizes(op: Operation, inputs: Inputs) -> dict[str, int]:
    """Return letter -> length, for every axis longer than 1 that has a letter, but for one as long in k as in q."""
    sizes: dict[str, int] = {}
    axes: dict[tuple[int, int], str] = {}
    for name, tensor in inputs.items():
        for axis, (letter, n) in enumerate(zip(letters(op, name, len(tensor.shape)), tensor.shape, strict=True)):
            if letter and n > 1 and (name not in ("k", "v") or axes.setdefault((axis, n), letter) == letter):
                axes.setdefault((axis, n), letter)
                sizes.setdefault(letter, n)
    return sizes


def _roots(sizes: dict[str, int]) -> list[tuple[float, str]]:
    """List the powers of one axis's length, or of the product of two, such as 1/sqrt(H D), with their names.

    Of axes of one length the batch is the unlikelier.
    """
    called = []
    likely = sorted(sizes, key=lambda letter: letter in _BATCH)
    for count in (1, 2):
        for chosen in combinations(likely, count):
            n, text = math.prod(sizes[letter] for letter in chosen), " ".join(chosen)
            for how, power in _POWERS.items():
                called.append((float(n) ** power, f"{how.format(text)} = {float(n) ** power:.4g}"))
    return called


def _usual(own: float) -> dict[float, str]:
    root = math.sqrt(2.0)
    values = [0.0, 1.0, own**2, math.sqrt(max(own, 0.0)), -own, root * own, own / root, 256.0, 500000.0, 0.2]
    values += [float(f"{own * 10.0**k:.12g}") for k in range(-8, 9)] + [float(f"1e{k}") for k in range(-12, 7)]
    values += [value for k in (2, 3, 4, 8, 16, 32) for value in (k * own, own / k)]
    return {value: f"{value:.6g}" for value in values}


def _around(own: float) -> np.ndarray:
    """Return a logarithmic grid about a constant; about 0 a linear one."""
    if own == 0:
        return np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    return np.concatenate([[-abs(own), 0.0], abs(own) * np.logspace(-8, 8, 33)])


def _best(knob: Knob, actual: np.ndarray) -> tuple[float, Callable[[float], float]] | None:
    """Find by golden section the value whose answer is nearest to `actual`; None if none is clearly better.

    -> the value; value -> how far the answer with it is from `actual`
    """
    rng = np.random.default_rng(3)
    at = np.arange(actual.size) if actual.size <= _SAMPLE else rng.integers(0, actual.size, _SAMPLE)
    wanted = actual.ravel()[at].astype(np.float64)

    def sampled(value: float) -> np.ndarray:
        try:
            with np.errstate(all="ignore"):
                y = knob.turned(value)
        except (BadInput, ValueError, ZeroDivisionError, OverflowError):
            return np.full(at.shape, np.nan)
        return y.ravel()[at].astype(np.float64) if y.shape == actual.shape else np.full(at.shape, np.nan)

    def error(value: float) -> float:
        rest = float(np.linalg.norm(sampled(value) - wanted))
        return rest if math.isfinite(rest) else math.inf

    own = error(knob.own)
    if _out_of_reach(sampled, wanted, own):
        return None
    grid = np.unique(knob.grid)
    errors = [error(float(v)) for v in grid]
    i = int(np.argmin(errors))
    around = errors[max(i - 1, 0) : i + 2]
    # Skip a knob on which the answer does not depend.
    if not math.isfinite(errors[i]) or max(around) - min(around) < _FLAT * own:
        return None
    low, high = float(grid[max(i - 1, 0)]), float(grid[min(i + 1, len(grid) - 1)])
    log = low > 0
    low, high = (math.log(low), math.log(high)) if log else (low, high)
    value = _golden(lambda v: error(math.exp(v) if log else v), low, high)
    # Where the answer waves, only the grid may meet the value.
    value = min(float(grid[i]), math.exp(value) if log else value, key=error)
    return (value, error) if error(value) < _CLEARLY * own else None


def _out_of_reach(sampled: Callable[[float], np.ndarray], wanted: np.ndarray, own: float) -> bool:
    """Return True if the answer is straight in the value, and no value brings it clearly nearer to `wanted`.

    own: how far the answer with the right value is from it. Most operations are linear in most inputs: few answers
         then tell what the search would find.
    """
    start = sampled(0.0)
    along = sampled(1.0) - start
    size = float(np.linalg.norm(start) + np.linalg.norm(along))
    for value in _ON_THE_LINE:
        apart = float(np.linalg.norm(sampled(value) - start - value * along))
        if not apart <= _STRAIGHT * size * max(1.0, abs(value)):
            return False
    rest = wanted - start
    rest = rest - (rest @ along) / (along @ along or 1.0) * along
    return own > _STRAIGHT * size and float(np.linalg.norm(rest)) > 2 * _CLEARLY * own


def _golden(error: Callable[[float], float], low: float, high: float) -> float:
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = error(a), error(b)
    for _ in range(_ROUNDS):
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = error(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = error(b)
    return (low + high) / 2
