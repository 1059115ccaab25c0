"""Note that a search for a cause was cut by its time limit, so that the report can say so.

What is found then depends on the machine, where all other searches end by counted work.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
_CUTS: ContextVar[list[float] | None] = ContextVar("cuts", default=None)


@contextmanager
def noted_cuts() -> Iterator[list[float]]:
    """Yield a list to which the limits, in seconds of CPU time, of the searches that were cut are appended."""
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


class TimeLimit:
    """A limit in seconds of this process's CPU time, which begins when it is made."""

    def __init__(self, seconds: float):
        self._seconds, self._end = seconds, time.process_time() + seconds

    def within(self, candidates: Iterable[T], reserve: float = 0.0) -> Iterator[T]:
        """Yield the candidates until the limit is `reserve` seconds away; note a cut if any are left then."""
        for one in candidates:
            if time.process_time() > self._end - reserve:
                note_cut(self._seconds)
                return
            yield one
