"""Constraints that a component's weights set: on sizes of its inputs, on its params, on which inputs there are."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from refsd.module import Module
from refsd.numerics.errors import BadInput


class Fit(NamedTuple):
    """A constraint by the weights on a size, on a param, or on an argument's presence (1: present, 0: absent).

    n:     the number in the constraint
    says:  the constraint in words, for error messages
    holds: returns True for a value that satisfies it
    lists: True if a param may also be a list of numbers, which is then passed to `holds`
    alone: True if `holds` also checks a param's type
    """

    n: int
    says: str
    holds: Callable[[Any], bool]
    lists: bool = False
    alone: bool = False


def exactly(n: int) -> Fit:
    return Fit(n, f"{n}", lambda size: size == n)


def multiple_of(n: int) -> Fit:
    return Fit(n, f"a multiple of {n}", lambda size: size % n == 0)


def at_least(n: int) -> Fit:
    return Fit(n, f"at least {n}", lambda size: size >= n)


def at_most(n: int) -> Fit:
    return Fit(n, f"at most {n}", lambda size: size <= n)


def layers_below(n: int) -> Fit:
    """Constrain a list of layers to skip."""
    return Fit(n, f"layers 0 to {n - 1}", lambda layers: all(layer < n for layer in layers))


def divisor_of(n: int) -> Fit:
    return Fit(n, f"a divisor of {n}", lambda size: n % size == 0)


def numbers(n: int, above_zero: bool = False) -> Fit:
    """Return the constraint of a param that is a list of n finite numbers."""
    least = "above 0" if above_zero else "finite"

    def holds(values) -> bool:
        listed = type(values) is list and len(values) == n and all(type(v) in (int, float) for v in values)
        return listed and all(math.isfinite(v) and (v > 0 or not above_zero) for v in values)

    return Fit(n, f"a list of {n} numbers, each {least}", holds, alone=True)


def rotary_axes(m: Module, outputs: str, norms: tuple[str, ...] = (), axes: int = 3, unturned: bool = False) -> Fit:
    """Return the constraint of the rotary channels of a head for each axis; their sum is the head's width.

    outputs:  weight whose rows are whole heads; norms: weights of queries and keys, of the head's width
    unturned: True if RoPE may leave channels of a head as they are; of the weights, only the norms count then
    """
    rows, widths = m.shape(outputs)[0], {m.shape(norm)[0] for norm in norms if norm in m.weights}
    most = min(widths, default=rows)

    def holds(dims) -> bool:
        if type(dims) is not list or len(dims) != axes or any(type(n) is not int or n < 1 or n % 2 for n in dims):
            return False
        return sum(dims) <= most if unturned else rows % sum(dims) == 0 and widths <= {sum(dims)}

    of = f" and is {most}, the norms' width" if widths else ""
    whole = f"is at most {most}, a head's channels" if unturned else f"divides {rows} channels{of}"
    return Fit(most if unturned else rows, f"{axes} even numbers whose sum {whole}", holds, alone=True)


def whole_heads(m: Module, outputs: str, head_dim: int, norms: tuple[str, ...]) -> None:
    """Raise BadInput unless a weight's rows are a multiple of `head_dim` and norms of queries have that width."""
    widths = {outputs: m.shape(outputs)[0]} | {norm: m.shape(norm)[0] for norm in norms if norm in m.weights}
    rows, *others = widths.values()
    if rows % head_dim or any(width != head_dim for width in others):
        rows_of_each = " and ".join(f'"{name}" has {width} rows' for name, width in widths.items())
        raise BadInput(f"{rows_of_each}: refsd computes whole heads of {head_dim} channels")


def needed(why: str) -> Fit:
    """Declare that an optional argument is required by these weights."""
    return Fit(1, f"needed: {why}", bool)


def refused(why: str) -> Fit:
    """Declare that an optional argument must be absent, because these weights do not use it."""
    return Fit(0, f"of no use: {why}", lambda given: not given)
