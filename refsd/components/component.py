"""What a component takes and gives, as tables: arguments, outputs, and what its weights demand."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from refsd.module import Module
from refsd.numerics.errors import BadInput

VALUE = "float, rounded to the storage dtype"
POSITION = "float, never rounded"
IDS = "integer"
MASK = "0 or 1"


class Argument(NamedTuple):
    """
    shape:    letters, each one size throughout a call: "N C H W"; "J+L" is a sum, "8H" a multiple, "3" a number
    kind:     VALUE, POSITION, IDS or MASK
    what:     a few words, with the range
    optional: may be left out, unless the weights say otherwise (`needed` in the component's fits)
    """

    shape: str
    kind: str
    what: str
    optional: bool = False


class Fit(NamedTuple):
    """What the weights demand of a size, of a param, or of an argument's presence (1 where it is given, else 0).

    lists: whether a param may be a list of numbers too, which `holds` then is given
    """

    n: int
    says: str
    holds: Callable[[Any], bool]
    lists: bool = False


def exactly(n: int) -> Fit:
    return Fit(n, f"{n}", lambda size: size == n)


def multiple_of(n: int) -> Fit:
    return Fit(n, f"a multiple of {n}", lambda size: size % n == 0)


def at_least(n: int) -> Fit:
    return Fit(n, f"at least {n}", lambda size: size >= n)


def at_most(n: int) -> Fit:
    return Fit(n, f"at most {n}", lambda size: size <= n)


def divisor_of(n: int) -> Fit:
    return Fit(n, f"a divisor of {n}", lambda size: n % size == 0)


def whole_heads(m: Module, outputs: str, head_dim: int, norms: tuple[str, ...]) -> None:
    """Raises BadInput unless a weight's rows are whole heads of `head_dim`, and norms of queries are as wide."""
    widths = {outputs: m.shape(outputs)[0]} | {norm: m.shape(norm)[0] for norm in norms if norm in m.weights}
    rows, *others = widths.values()
    if rows % head_dim or any(width != head_dim for width in others):
        rows_of_each = " and ".join(f'"{name}" has {width} rows' for name, width in widths.items())
        raise BadInput(f"{rows_of_each}: refsd computes whole heads of {head_dim} channels")


def needed(why: str) -> Fit:
    """An optional argument that these weights ask for."""
    return Fit(1, f"needed: {why}", bool)


def refused(why: str) -> Fit:
    """An optional argument for which these weights have no use."""
    return Fit(0, f"of no use: {why}", lambda given: not given)


class Component(NamedTuple):
    """
    part:      the component of a checkpoint that holds the weights; None: a case brings them
    run:       (Module, arguments and params by name) -> the outputs, then what `also` names; or name -> array
    arguments: name -> Argument
    outputs:   name -> shape, what an engine is judged by
    params:    name -> default
    fits:      letter, param or optional argument -> Fit, read from the weights' shapes; "V" bounds the ids
    also:      name -> shape, what `refsd forward` gives besides
    beside:    another component of the checkpoint that the weights are joined with, under its own prefix
    """

    part: str | None
    run: Callable[..., Any]
    arguments: Mapping[str, Argument]
    outputs: Mapping[str, str]
    params: Mapping[str, Any]
    fits: Callable[[Module], Mapping[str, Fit]]
    also: Mapping[str, str] = {}
    beside: str | None = None
