"""Decide whether a known bug explains a wrong answer: one rule, for operations and for whole models.

A bug is named only if the engine's answer is clearly nearer to the reference's answer with the bug than to the
truth and to the honest run, and no other bug's answer is clearly nearer still. Rounding hides distances, so
nearness is measured along the bug's own effect: truth (or honest run) at 0, the answer with the bug at 1.

    effect   = suspect - honest
    position = <actual - origin, effect> / <effect, effect>,  origin: the truth, then the honest run
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from refsd.golden.metrics import norm, units
from refsd.golden.wording import counted

_SAID = 3  # causes in a reason
# How far from 1 the position may be.
_AWAY = 0.25
# The same for a lower precision, in which honest runs differ where they sum in another order. Measured between two
# float16 or bfloat16 runs of whole models: positions of 0.55 to 0.93.
_AWAY_ROUNDED = 0.5
# The effect must be this many times as large as the error with which its position is measured.
_SIGNIFICANT = 8.0
# One distance is clearly less than another if it is at most this share of it.
_CLEARLY = 0.5

# With fewer elements, chance explains half of any error.
_ENOUGH = 32
# Report a bug only if it explains more than this share of the squared error.
_WORTH = 0.5
# Name it in a headline only from this share on.
_TELLING = 0.8
# Put the case beside others that it explains wholly from this share on.
_NEARLY = 0.95

Answer = Mapping[str, np.ndarray]


class Nearest(msgspec.Struct, frozen=True):
    """The known bug that explains the most of an error which no bug explains.

    cause: its name
    times: the multiple of its effect that fits best
    share: the share of the squared error that this multiple removes, 0..1
    """

    cause: str
    times: float
    share: float

    @property
    def percent(self) -> int:
        """Return the share in percent, rounded down and below 100, since no named cause explains everything."""
        return min(math.floor(100 * self.share), 99)

    @property
    def telling(self) -> bool:
        """Return True if it explains so much of the error that a headline may name it."""
        return self.share >= _TELLING

    @property
    def is_nearly_all(self) -> bool:
        """Return True if the bug itself, no multiple of it, is nearly all of the error."""
        return self.share >= _NEARLY and abs(self.times - 1) <= _AWAY

    @property
    def phrase(self) -> str:
        much = "" if abs(self.times - 1) <= _AWAY else f", {self.times:.2g} times as strong,"
        return f"the nearest known bug, {self.cause!r}{much or ','} explains {self.percent} % of the error"


class Explanation(NamedTuple):
    """What explains a wrong answer.

    causes:   bugs with which the reference agrees with it, the likeliest first
    looks:    if there are none: phrases that describe the error, the surest first
    nearest:  if there are none: the known bug that explains more than half of the error; None if there is none
    possible: if there are none: bugs that explain it, whose effect is no larger than roundings may be; else bugs
              that come to the same in this case alone, as a tail that is all of an axis
    cut:      if there are none: a phrase that the search was cut by its time limit; "" if it was not
    """

    causes: Sequence[str] = ()
    looks: Sequence[str] = ()
    nearest: Nearest | None = None
    possible: Sequence[str] = ()
    cut: str = ""

    @property
    def phrases(self) -> list[str]:
        """Return the causes in one phrase; else the looks, and the nearest bug if it is telling."""
        if self.causes:
            more = len(self.causes) - _SAID
            others = [counted(more, "other")] if more > 0 else []
            return [f"the reference agrees if {' or '.join([*self.causes[:_SAID], *others])}"]
        return [*self.looks, *([self.nearest.phrase] if self.nearest and self.nearest.telling else [])]

    @property
    def text(self) -> str:
        """Return the first two phrases, and whether the search was cut, for a reason."""
        return "; ".join(filter(None, [*self.phrases[:2], self.cut]))


@dataclass(frozen=True)
class Scene:
    """The three answers to a case that does not conform.

    actual: the engine's, with every output of the truth's shape
    truth:  in float64
    honest: the reference's under the numerics that the engine declares
    scale:  output -> the unit of its elements' errors: a number or an array, above zero; inf: any value is right
    """

    actual: Answer
    truth: Answer
    honest: Answer
    scale: Mapping[str, np.ndarray | float]

    def explained_by(self, suspect: Answer, precision: bool = False) -> bool:
        """Return True if a bug explains the engine's answer.

        suspect:   the reference's answer with the bug, under the engine's numerics
        precision: whether the bug is a lower precision
        """
        if any(suspect[name].shape != y.shape for name, y in self.truth.items()):
            return False
        effect = self._apart(suspect, self.honest)
        size = norm(effect) or math.inf  # without an effect all positions are 0
        away = _AWAY_ROUNDED if precision else _AWAY
        near = all(abs(np.einsum("i,i->", e / size, effect / size) - 1) <= away for e in self._errors)
        return near and _SIGNIFICANT * self.distance(suspect) <= size

    @cached_property
    def _errors(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the engine's answer minus the truth, and minus the honest run, in units of `scale`."""
        return self._apart(self.actual, self.truth), self._apart(self.actual, self.honest)

    def distance(self, suspect: Answer) -> float:
        """Return the RMS of the difference between the engine's answer and another, in units of `scale`."""
        z = self._apart(self.actual, suspect)
        return norm(z) / math.sqrt(max(z.size, 1))

    def nearest(self, suspects: Mapping[str, Answer]) -> list[str]:
        """List the suspects within twice the smallest distance from the engine's answer, the nearest first.

        Distances below the honest run's distance from the truth count as equal.
        """
        noise = replace(self, actual=self.honest).distance(self.truth)
        apart = {name: self.distance(answer) for name, answer in suspects.items()}
        least = max(min(apart.values(), default=0.0), noise)
        return sorted((name for name in apart if _CLEARLY * apart[name] <= least), key=apart.__getitem__)

    def share(self, suspect: Answer) -> tuple[float, float]:
        """Return the best multiple of a bug's effect, and the share of the squared error that it removes.

        suspect: the reference's answer with the bug, under the engine's numerics
        """
        error, effect = self._apart(self.actual, self.truth), self._apart(suspect, self.honest)
        sizes, along = (norm(error), norm(effect)), float(np.einsum("i,i->", error, effect))
        return (along / sizes[1] ** 2, (along / sizes[0] / sizes[1]) ** 2) if all(sizes) else (0.0, 0.0)

    def nearest_cause(self, suspects: Iterable[tuple[str, Answer]]) -> Nearest | None:
        """Return the bug that removes the most of an error that none explains; None if that is half or less.

        suspects: (bug, the reference's answer with it), looked at one by one
        """
        if sum(y.size for y in self.truth.values()) < _ENOUGH:
            return None
        if not all(np.isfinite(self.actual[name]).all() for name in self.truth):
            return None
        shares = {
            name: self.share(suspect)
            for name, suspect in suspects
            if all(suspect[output].shape == y.shape for output, y in self.truth.items())
        }
        shares = {name: share for name, share in shares.items() if share[0] > 0 and share[1] > _WORTH}
        if not shares:
            return None
        name, (times, share) = max(shares.items(), key=lambda item: item[1][1])
        return Nearest(name, times, share)

    def _apart(self, one: Answer, other: Answer) -> np.ndarray:
        """Return one - other in units of `scale`, all outputs concatenated."""
        return np.concatenate([_units(one[name], other[name], self.scale[name]).reshape(-1) for name in self.truth])


def _units(one: np.ndarray, other: np.ndarray, scale: np.ndarray | float) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        e = np.subtract(one, other, dtype=np.float64)
    if not np.isfinite(e).all():
        e = np.where((one == other) | (np.isnan(one) & np.isnan(other)) | np.isinf(scale), 0.0, e)
    return units(e, scale)
