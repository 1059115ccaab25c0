"""Note that a search for a cause was cut by its time limit, so that the report can say so.

What is found then depends on the machine, where all other searches end by counted work.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
_CUTS: ContextVar[list[float] | None] = ContextVar("cuts", default=None)


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


def _computing() -> float:
    from refsd.kernels._jit import compiled_for  # imports Numba: whoever searches has computed something before

    return time.process_time() - compiled_for()


class TimeLimit:
    """A limit in seconds, which begins when it is made.

    clock: by default this process's CPU time, of all of its threads together, without that of compiling kernels:
           what is found shall not depend on which of them were compiled before
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
