"""Note that a search for a cause was cut by its time limit, so that the report can say so; shorten later ones.

Limits are in seconds of a processor of 2024; a slower one is given as many more, so that it finds nearly the same.
All other searches end by counted work.
"""

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from refsd.golden.cause_kinds import kinds

T = TypeVar("T")
_CUTS: ContextVar[list[float] | None] = ContextVar("cuts", default=None)
_ROUNDS, _USUAL = 20_000, 50e-9  # Python takes so many seconds a round of `_count` on a Zen 4
_SLOWEST = 4.0
_IDLE = 6  # searches that tell nothing new, before others are shortened


@contextmanager
def noted_cuts() -> Iterator[list[float]]:
    """Yield a list to which the limits, in seconds, of the searches that were cut are appended."""
    cuts: list[float] = []
    token = _CUTS.set(cuts)
    try:
        yield cuts
    finally:
        _CUTS.reset(token)


def note_cut(seconds: float) -> None:
    cuts = _CUTS.get()
    if cuts is not None:
        cuts.append(seconds)


class SearchMemory:
    """What the failing cases of one operation have told, so that later ones are asked only for that.

    finders: those that explained a case; idle: wide searches in turn that added none
    """

    def __init__(self):
        self.finders: set[str] = set()
        self._kinds = Counter[str]()  # of causes, with the number of cases
        self.idle = 0

    @property
    def short(self) -> bool:
        return self.idle >= _IDLE

    def note(self, found_by: Mapping[str, str]) -> None:
        """Take the causes that explained a case, each with its finder."""
        self.idle = self.idle + 1 if self.finders.issuperset(found_by.values()) else 0
        self.finders.update(found_by.values())
        self._kinds.update({kind for cause in found_by for kind in kinds(cause)})

    def suffices(self, cause: str) -> bool:
        """Return True for a cause of six other cases, once searches are short: no other need be tried."""
        return self.short and any(self._kinds[kind] >= _IDLE for kind in kinds(cause))


_MEMORY: ContextVar[SearchMemory | None] = ContextVar("memory", default=None)


@contextmanager
def remembering(memory: SearchMemory | None) -> Iterator[None]:
    """Search with a memory; None: each search is as wide as the first."""
    token = _MEMORY.set(memory)
    try:
        yield
    finally:
        _MEMORY.reset(token)


def search_memory() -> SearchMemory | None:
    return _MEMORY.get()


def _count() -> float:
    """Return the CPU seconds of a round of a loop in Python, which is what searches are made of."""
    began, total = time.process_time(), 0
    for i in range(_ROUNDS):
        total += i * i
    return (time.process_time() - began) / _ROUNDS


@functools.cache
def slowness() -> float:
    """Return how many times as long this processor computes as a Zen 4, from 1 to 4."""
    return min(max(min(_count() for _ in range(5)) / _USUAL, 1.0), _SLOWEST)


def _computing() -> float:
    from refsd.kernels._jit import compiled_for  # imports Numba: whoever searches has computed something before

    return (time.process_time() - compiled_for()) / slowness()


class TimeLimit:
    """A limit in seconds, which begins when it is made.

    clock: by default this process's CPU time in a Zen 4's seconds, of all of its threads together, without that of
           compiling kernels: what is found shall not depend on which of them were compiled before
    noted: False for a search after the one for a cause: its cut leaves no cause unknown
    """

    def __init__(self, seconds: float, clock: Callable[[], float] | None = None, noted: bool = True):
        self._seconds, self._clock, self._noted = seconds, clock or _computing, noted
        self._end = self._clock() + seconds

    def within(self, candidates: Iterable[T], reserve: float = 0.0) -> Iterator[T]:
        """Yield the candidates until the limit is `reserve` seconds away; note a cut if any are left then."""
        for one in candidates:
            if self._clock() > self._end - reserve:
                if self._noted:
                    note_cut(self._seconds)
                return
            yield one
