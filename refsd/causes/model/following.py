"""Run the reference on the engine's taps, so that each operation is judged on the engine's own inputs.

Where the engine gave an intermediate result (a "tap"), the reference continues with it instead of its own. A tap
is thus compared with what the operations since the previous tap should make of the engine's numbers. Earlier
errors do not carry over: the error at a tap is that of these few operations alone.
"""

import functools
import itertools
import math
import re
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from refsd.causes.model.observed import Observed
from refsd.module import Module
from refsd.progress.taps import ShownTaps

Answer = Mapping[str, np.ndarray]
# Axes whose orders are tried, at most; how much nearer another order of joined axes must be.
_MOST_AXES = 5
_NEARER = 0.7
# Numbers of a tap, at most, by which its orders are compared.
_COMPARED = 1 << 14


class Segment(NamedTuple):
    """The calls of operations between a tap and the one before it.

    first, last: their range in Observed's count of calls; last is exclusive
    ops:         their operations
    loss:        the largest error of an honest float32 engine in one of them, relative to the result's RMS
    """

    first: int
    last: int
    ops: tuple[str, ...]
    loss: float


def as_shaped(actual: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Reshape an engine's tap to the reference's shape if the sizes are equal: axes may be split or joined."""
    return actual.reshape(shape) if actual.size == math.prod(shape) else actual


def nearest_order(actual: np.ndarray, right: np.ndarray) -> tuple[int, ...]:
    """Return the order of its axes with which a tap of another shape is nearest to the right one; () for its own.

    Where the tap's shape has the same sizes in another order, only orders that restore the right shape count; where
    axes were split or joined, one that is clearly nearer. A tap that is wrong otherwise is still nearest in its own
    layout: in others its numbers have nothing to do with the right ones. An order that leaves the tap's shape as it
    is does not count: a transposed result would pass.
    """
    if _sizes(actual) == _sizes(right) or actual.size != right.size or not 1 < actual.ndim <= _MOST_AXES:
        return ()
    own = tuple(range(actual.ndim))
    shapes = {o: tuple(actual.shape[axis] for axis in o) for o in itertools.permutations(own)}
    same_sizes = sorted(actual.shape) == sorted(right.shape)
    orders = [o for o, shape in shapes.items() if (shape == right.shape if same_sizes else shape != actual.shape)]
    orders = orders if same_sizes else [own, *orders]
    some = np.arange(right.size)
    if right.size > _COMPARED:
        some = np.random.default_rng(0).integers(right.size, size=_COMPARED)
    values = right.reshape(-1)[some]
    errors = {o: _distance(actual.transpose(o)[np.unravel_index(some, shapes[o])], values) for o in orders}
    best = min(errors, key=errors.__getitem__, default=own)
    return () if best == own or errors[best] > _NEARER * errors.get(own, np.inf) else best


def _sizes(y: np.ndarray) -> list[int]:
    """Return the sizes of the axes that are longer than 1."""
    return [n for n in y.shape if n > 1]


def _distance(actual: np.ndarray, right: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        apart = float(np.linalg.norm(actual.astype(np.float64) - right))
    return apart if np.isfinite(apart) else np.inf


def of_one_layer(one: str, other: str, names: Collection[str]) -> bool:
    """Return True for the taps of two calls of one layer or operation: NAME, NAME.1, NAME.2.

    names: of all taps; where NAME is none of them, or NAME.0 is one, these are NAME's parts
    """
    bases = {name if f"{name}.1" in names else re.sub(r"\.[1-9]\d*$", "", name) for name in (one, other)}
    return len(bases) == 1 and all(base in names and f"{base}.0" not in names for base in bases)


class Reached(Exception):
    """Ends a run early: the requested tap has been computed."""


class Following(ShownTaps):
    """The reference's taps when it continues from an engine's taps, and the operations between them.

    label:      text of the status line on stderr
    actual:     the engine's taps
    arithmetic: the reference's; records the operations in `segments`
    until:      the tap at which the run ends, by raising Reached; None: run to the model's end
    given:      engine taps whose own value is not needed, in the reference's shape: `Passing` skips their layers
    right:      a run without a change and with `keeps`: `Passing` reuses its products where inputs are equal
    keeps:      methods of Module whose inputs to keep: PRODUCTS or LAYERS
    also:       taps to keep that the engine did not give
    layouts:    not None: filled with tap -> the order of its axes with which it is nearest to the reference

    segments: tap -> the operations that lead to it
    shaped:   the engine's taps with which the reference continued
    inputs:   tap -> input of its layer
    taken:    taps whose values were reused from `right`
    """

    def __init__(
        self,
        label: str,
        actual: Answer,
        arithmetic: Observed | None = None,
        until: str | None = None,
        given: Answer = MappingProxyType({}),
        right: "Following | None" = None,
        keeps: Collection[str] = (),
        layouts: dict[str, tuple[int, ...]] | None = None,
        also: Collection[str] = (),
    ):
        names = {*also} | (actual.keys() - given.keys()) if until is None else (until,)
        super().__init__(label, ops=True, names=names)
        self.segments: dict[str, Segment] = {}
        self.shaped: dict[str, np.ndarray] = {}
        self.inputs: dict[str, np.ndarray] = {}
        self.taken: set[str] = set()
        self._right, self._keeps, self._layouts = right, keeps, layouts
        self._found, self._arithmetic, self.until, self._given = actual, arithmetic, until, given
        self._first = 0

    def next_given(self, name: str) -> np.ndarray | None:
        """Return the value in `given` of the tap that is recorded next under this name; None if there is none."""
        name = self._next(name)
        return None if name == self.until else self._given.get(name)

    def note_input(self, method: str, name: str, x: np.ndarray) -> None:
        """Keep the input of a layer that is about to be computed, if its method's are wanted."""
        if method in self._keeps:
            self.inputs[self._next(name)] = x

    def product_of(self, name: str, x: np.ndarray) -> np.ndarray | None:
        """Return the right run's product for this name if its input was x; None if not."""
        name = self._next(name)
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
        if name == self.until:
            raise Reached
        given = self._found.get(name)
        if given is None:
            return value
        if self._layouts is not None and (order := nearest_order(given, value)):
            self._layouts[name], given = order, given.transpose(order)
        given = as_shaped(given, value.shape)
        if self._arithmetic is not None:
            self.segments[name] = self.rest()
            self._first = self.segments[name].last
        if given.shape != value.shape or not np.isfinite(given).all():
            return value
        self.shaped[name] = given
        return np.array(given, value.dtype)

    def rest(self) -> Segment:
        """Return the calls since the engine's last tap."""
        assert self._arithmetic is not None
        ops, losses = self._arithmetic.ops[self._first :], self._arithmetic.losses[self._first :]
        return Segment(self._first, self._first + len(ops), tuple(ops), max(losses, default=0.0))


class Passing(Module):
    """A Module that skips layers whose output a Following replaces, and products that the right run has."""


def _passing(method: str) -> Callable[..., Any]:
    computed = getattr(Module, method)

    @functools.wraps(computed)
    def answer(self, name, *arguments, **named):
        follows = isinstance(self.taps, Following) and name is not None
        given = self.taps.next_given(self.prefix + name) if follows else None
        if given is None:
            if follows:
                self.taps.note_input(method, self.prefix + name, arguments[0])
            reused = follows and method in PRODUCTS
            product = self.taps.product_of(self.prefix + name, arguments[0]) if reused else None
            return computed(self, name, *arguments, **named) if product is None else self._tap(name, product)
        if isinstance(self.arithmetic, Observed):
            self.arithmetic.pass_over(method)
        return self._tap(name, np.asarray(given, self.arithmetic.numerics.storage_dtype))

    return answer


# Layers whose result depends only on their input: a change to another operation leaves them as they are.
PRODUCTS = ("linear", "text_projection", "conv2d", "conv3d")
LAYERS = (*PRODUCTS, "group_norm", "layer_norm", "rms_norm", "rms_norm_apart", "embedding")
for _method in LAYERS:
    setattr(Passing, _method, _passing(_method))
