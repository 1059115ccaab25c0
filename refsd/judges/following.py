"""The reference, going the engine's way: each operation is judged on what the engine itself put into it.

Where an engine gave an intermediate result, the reference goes on with that in place of its own. So what stands
beside a tap is what the operations since the taps before it should have made of the engine's own numbers: nothing
is inherited, and a wrong operation is wrong by all that it errs, beside the rounding of that operation alone.
"""

import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from refsd.judges.observed import Observed
from refsd.module import Module
from refsd.tap_progress import ShownTaps

Answer = Mapping[str, np.ndarray]


class Segment(NamedTuple):
    """The calls of operations between a tap and the one before it. first, last: of Observed's; the last is not one.

    ops:   their operations
    loss:  what an honest float32 engine may lose in them, as a share of the result's RMS
    """

    first: int
    last: int
    ops: tuple[str, ...]
    loss: float


def as_shaped(found: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """An engine's tap in the reference's shape, if it has as many elements: axes may be split or joined."""
    return found.reshape(shape) if found.size == math.prod(shape) else found


class Reached(Exception):
    """The tap that was wanted has been computed."""


class Following(ShownTaps):
    """What the reference makes of an engine's taps; and the way between them.

    label:      for the line on stderr
    found:      the engine's taps
    arithmetic: the reference's
    until:      the tap with which the run ends, by Reached; None: the model's end
    given:      the engine's taps that nobody asks for, as an earlier run shaped them, for `Passing`
    right:      the run without a change, which kept its inputs: `Passing` takes its products of equal inputs
    keeps:      whether the inputs of products are kept

    shaped: the engine's taps that the reference went on with
    inputs: of products, by their taps
    taken:  the taps that are the right run's
    """

    def __init__(
        self,
        label: str,
        found: Answer,
        arithmetic: Observed | None = None,
        until: str | None = None,
        given: Answer = MappingProxyType({}),
        right: "Following | None" = None,
        keeps: bool = False,
    ):
        super().__init__(label, ops=True, names=found.keys() - given.keys() if until is None else (until,))
        self.segments: dict[str, Segment] = {}
        self.shaped: dict[str, np.ndarray] = {}
        self.inputs: dict[str, np.ndarray] = {}
        self.taken: set[str] = set()
        self._right, self._keeps = right, keeps
        self._found, self._arithmetic, self._until, self._given = found, arithmetic, until, given
        self._first = 0

    def next_given(self, name: str) -> np.ndarray | None:
        """What stands in `given` for the tap that is recorded next under this name."""
        name = self._next(name)
        return None if name == self._until else self._given.get(name)

    def product_of(self, name: str, x: np.ndarray) -> np.ndarray | None:
        """The product of x that is recorded next under this name, if the right run has it."""
        name = self._next(name)
        if self._keeps:
            self.inputs[name] = x
        if self._right is None or name not in self._right or not np.array_equal(self._right.inputs[name], x):
            return None
        self.taken.add(name)
        return self._right[name]

    def _next(self, name: str) -> str:
        again = self._seen[name]
        return f"{name}.{again}" if again else name

    def record(self, name: str, value: np.ndarray) -> np.ndarray:
        value = super().record(name, value)
        name = self.recorded[-1]
        if name == self._until:
            raise Reached
        given = self._found.get(name)
        if given is None:
            return value
        given = as_shaped(given, value.shape)
        if self._arithmetic is not None:
            self.segments[name] = self.rest()
            self._first = self.segments[name].last
        if given.shape != value.shape or not np.isfinite(given).all():
            return value
        self.shaped[name] = given
        return np.array(given, value.dtype)

    def rest(self) -> Segment:
        """The calls since the engine's last tap."""
        assert self._arithmetic is not None
        ops, losses = self._arithmetic.ops[self._first :], self._arithmetic.losses[self._first :]
        return Segment(self._first, self._first + len(ops), tuple(ops), max(losses, default=0.0))


class Passing(Module):
    """A module that computes neither a layer in whose place a Following puts a tap, nor a product twice."""


def _passing(method: str) -> Callable[..., Any]:
    computed = getattr(Module, method)

    @functools.wraps(computed)
    def answer(self, name, *arguments, **named):
        follows = isinstance(self.taps, Following) and name is not None
        given = self.taps.next_given(self.prefix + name) if follows else None
        if given is None:
            product = (
                self.taps.product_of(self.prefix + name, arguments[0]) if follows and method in _PRODUCTS else None
            )
            return computed(self, name, *arguments, **named) if product is None else self._tap(name, product)
        if isinstance(self.arithmetic, Observed):
            self.arithmetic.pass_over(method)
        return self._tap(name, np.asarray(given, self.arithmetic.numerics.storage_dtype))

    return answer


# Layers that no change to another operation changes.
_PRODUCTS = ("linear", "text_projection", "conv2d")
_LAYERS = (
    "linear",
    "text_projection",
    "conv2d",
    "group_norm",
    "layer_norm",
    "rms_norm",
    "rms_norm_apart",
    "embedding",
)
for _method in _LAYERS:
    setattr(Passing, _method, _passing(_method))
