"""The reference, going the engine's way: each operation is judged on what the engine itself put into it.

Where an engine gave an intermediate result, the reference goes on with that in place of its own. So what stands
beside a tap is what the operations since the taps before it should have made of the engine's own numbers: nothing
is inherited, and a wrong operation is wrong by all that it errs, beside the rounding of that operation alone.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from refsd.judges.observed import Observed
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
    """

    def __init__(self, label: str, found: Answer, arithmetic: Observed | None = None, until: str | None = None):
        super().__init__(label, ops=True, names=found.keys() if until is None else (until,))
        self.segments: dict[str, Segment] = {}
        self._found, self._arithmetic, self._until = found, arithmetic, until
        self._first = 0

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
        return np.array(given, value.dtype)

    def rest(self) -> Segment:
        """The calls since the engine's last tap."""
        assert self._arithmetic is not None
        ops, losses = self._arithmetic.ops[self._first :], self._arithmetic.losses[self._first :]
        return Segment(self._first, self._first + len(ops), tuple(ops), max(losses, default=0.0))
