"""Activations with another function of the field in their place, gated ones with another gate."""

import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from refsd.causes.generic.error_places import joined
from refsd.golden.mutations import answer
from refsd.golden.operation import Inputs, Operation, Params

Named = Iterator[tuple[str, np.ndarray]]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[np.float64])(x)


FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "SiLU": lambda x: x * _sigmoid(x),
    "GELU (erf)": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    "GELU (tanh)": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "GELU (tanh) without its cube": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * x)) / 2,
    "quick GELU": lambda x: x * _sigmoid(1.702 * x),
    "ReLU": lambda x: np.maximum(x, 0),
    "ReLU squared": lambda x: np.maximum(x, 0) ** 2,
    "ELU": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "Mish": lambda x: x * np.tanh(np.logaddexp(x, 0)),
    "hard swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "SiLU with x / (1 + |x|) for its sigmoid": lambda x: x * (0.5 + 0.5 * x / (1 + np.abs(x))),
    "no function": lambda x: x,
}
_OWN = {
    "silu": "SiLU",
    "gelu": "GELU (erf)",
    "gelu_tanh": "GELU (tanh)",
    "quick_gelu": "quick GELU",
    "relu": "ReLU",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "swiglu": "SiLU",
    "geglu": "GELU (erf)",
}
NAMES = tuple(_OWN)
GATED = ("swiglu", "geglu")
# Lines may meet at every 1 / _BINS up to _FAR of them; the most lines, and the fewest numbers that tell one.
_BINS, _FAR, _LINES, _FEW, _SAME = 4, 32, 16, 4, 1e-5
# Ranges of an input, each beginning at a number; and how near an answer must be outside.
_RANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "x < -{}": np.negative,
    "x > {}": lambda x: x,
    "|x| > {}": np.abs,
}
_NEAR = (1e-5, 2.0**-7)


def other_functions(name: str, values: dict[str, np.ndarray], params: Params) -> Named:
    """Yield the answers of an activation with each other function in place of its own."""
    own, (gate, value) = _OWN[name], gate_and_value(name, values["x"], params)
    if name not in GATED:
        yield from ((f"{other} for {own}", function(gate)) for other, function in FUNCTIONS.items() if other != own)
        return
    for other, function in FUNCTIONS.items():
        if other != own:
            yield f"{other} for {own}", function(gate) * value
        exchanged = "gate and value exchanged"
        yield (f"{other} for {own}, {exchanged}" if other != own else exchanged), function(value) * gate


def ranges(op: Operation, inputs: Inputs, params: Params, actual: np.ndarray) -> Named:
    """Yield (phrase, wrong answer) if an activation, or its gate's, is something plain in a range of its input."""
    if op.name not in _OWN:
        return
    x, value = gate_and_value(op.name, inputs["x"].values().astype(np.float64), params)
    right = answer(op, inputs, params).astype(np.float64)
    for near, (words, far) in itertools.product(_NEAR, _RANGES.items()):
        wrong, along = ~(np.abs(actual - right) <= near * np.abs(right) + 1e-6), far(x)
        if not wrong.any() or not (along < along[wrong].min()).any():
            continue
        start = float(along[wrong].min())
        before, inside = float(along[along < start].max()), along >= start
        for what, there, bound in _in_range(op.name, x, actual, value, inside, (before, start)):
            y = np.where(inside, there * value, right)
            if np.allclose(actual[inside], y[inside], near, near):
                yield f"it is {what} where {words.format(bound)}", y.astype(np.float32)
                break


def _in_range(name, x, actual, value, inside, ends) -> Iterator[tuple[str, np.ndarray, str]]:
    """Yield (phrase, what stands for the activation, where its range begins).

    ends: the last number before the range, the first in it
    """
    bound = _between(*ends)
    number = float(np.median(actual[inside]))
    plain = {"0": 0 * x, "x": x, "-x": -x, "1": 0 * x + 1, "-1": 0 * x - 1, f"{number:.6g}": 0 * x + number}
    plain["max(x, 0)"] = np.maximum(x, 0)
    yield from ((what, there, bound) for what, there in plain.items())
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = float(np.median((actual / (value * x))[inside]))
        yield f"{factor:.6g} x", factor * x, bound
        # What is limited near a round number may not be seen before the next one.
        for limit in (bound, str(math.floor(ends[1]))):
            limited = np.clip(x, -float(limit), float(limit))
            its_own = FUNCTIONS[_OWN[name]](limited)
            yield f"its value at {limit}", its_own, limit
            yield f"x times its gate at {limit}", its_own / limited * x, limit


def _between(low: float, high: float) -> str:
    """Return the number of the fewest digits between two."""
    digits = next((d for d in range(12) if math.floor(high * 10**d) / 10**d > low), 12)
    return f"{math.floor(high * 10**digits) / 10**digits:.{digits}f}"


def straight_lines(op: Operation, inputs: Inputs, params: Params, actual: np.ndarray) -> Named:
    """Yield (phrase, wrong answer) if an activation, or its gate's, is a table: straight lines between places."""
    if op.name not in _OWN or not np.isfinite(actual).all():
        return
    x, value = gate_and_value(op.name, inputs["x"].values().astype(np.float64), params)
    bins, y, places, before = np.clip(np.floor(x * _BINS), -_FAR, _FAR), np.zeros(x.shape), [], None
    for k in np.unique(bins):
        inside = bins == k
        there = inside & (x * value != 0)
        own, size = x[there], np.abs(x[there])  # small numbers count as large ones do
        columns, right = np.stack([1 / size, own / size], axis=-1), actual[there] / (value[there] * size)
        line = np.linalg.lstsq(columns, right, rcond=1e-12)[0]
        if (np.abs(columns @ line - right) > _SAME * (1 + np.abs(right))).any():
            return
        line = line if own.size >= _FEW or before is None else before
        if before is not None and np.abs(line - before).max() > 10 * _SAME:
            places.append(f"{k / _BINS:g}")
        y[inside], before = line[0] + line[1] * x[inside], line
    if 0 < len(places) < _LINES:
        phrase = f"{_OWN[op.name]} is made of straight lines, which meet at {joined(places, 'and')}"
        yield phrase, (value * y).astype(np.float32)


def gate_and_value(name: str, x: np.ndarray, params: Params) -> tuple[np.ndarray, np.ndarray]:
    if name not in GATED:
        return x, np.ones_like(x)
    first, second = np.split(x, 2, axis=-1)
    return (second, first) if name == "geglu" or params.get("second_gates") else (first, second)
