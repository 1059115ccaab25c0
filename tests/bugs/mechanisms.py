"""What kind of bug a named cause is, and how far the kinds of one half of the bugs reach on the other half.

A cause is of a mechanism and not of its number: eps ten times too small and theta 10000 are one, wrong constants.
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

# The first mechanism of which a pattern is in the cause is the cause's.
MECHANISMS: dict[str, tuple[str, ...]] = {
    "not computed, or not finite": ("nothing is (computed|written)", "memory that nobody wrote", "NaN where"),
    "rounded too early": ("float16", "computed in", "precision"),
    "a known bug in one place": ("alone$",),
    "only the first": ("first (item|part|channel|query|for all)", "batch", "all items", "step's"),
    "another function": (
        "for SiLU",
        "erf",
        "computed as",
        "steps on",
        "as (the|if)",
        "nearest",
        "linear",
        "counted",
    ),
    "dropped": ("left out", "missing", "not (scaled|lowered|seen|read)", "ignored", "no tokens", "nothing", "lost"),
    "doubled, or where it does not belong": ("twice", "doubled", "once more", "also", "too$"),
    "order": (
        "swapped",
        "exchanged",
        "order",
        "reversed",
        "transposed",
        "pairing",
        "rows and columns",
        "blue",
        "by column",
    ),
    "off by one": ("one (too|token|layer|step)", r"i \+ ", "late", "half - 1", "next", "redundant", "at the end"),
    "state": ("same answer twice", "stays", "again", "another seed", "first (level|noise|rank)", "history"),
    "constant or scale": ("eps", "theta", "scale", "strength", "alpha", "shift", "times", "level", "limit", "bits"),
}


def mechanism(cause: str) -> str:
    """The kind of a named cause; one of its own where none fits."""
    kinds = (kind for kind, patterns in MECHANISMS.items() if any(re.search(p, cause) for p in patterns))
    return next(kinds, cause)


class Named(NamedTuple):
    """A bug: its level, and the cause that was named for it if that was the right one."""

    id: str
    level: str
    cause: str | None

    @property
    def kind(self) -> tuple[str, str] | None:
        """The level and the mechanism; None where the right cause was not named."""
        return None if self.cause is None else (self.level, mechanism(self.cause))


def share(bugs: Sequence[Named], known: Callable[[object], bool] = lambda kind: True) -> float:
    """The share of bugs that are named by a cause of a known kind."""
    return sum(bug.kind is not None and known(bug.kind) for bug in bugs) / max(len(bugs), 1)


def splits(bugs: Sequence[Named], count: int, seed: int) -> list[tuple[float, float]]:
    """For each random half: the share named in the other half by kinds that the first half needs, and by all."""
    draw = random.Random(seed)
    shares = []
    for _ in range(count):
        shuffled = draw.sample(list(bugs), len(bugs))
        first, second = shuffled[: len(bugs) // 2], shuffled[len(bugs) // 2 :]
        kinds = {bug.kind for bug in first if bug.kind is not None}
        shares.append((share(second, kinds.__contains__), share(second)))
    return shares
