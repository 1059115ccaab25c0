"""Put a cache on the main blocks of a denoiser: watch the first and the last, and skip those that it replaces."""

from typing import Any

import numpy as np

from refsd.caches.cache import Cache, Call, Place
from refsd.module import Module, Taps
from refsd.networks.component import Stack


class CachedStack(Taps):
    """Taps of one call of a network whose main blocks a cache may replace: where it does, the blocks are not run.

    The cache replaces the picture's tokens. Text leaves a skipped block as it came: no network reads it after the
    last block. Of a joined state the picture's tokens are the last ones.
    """

    def __init__(self, cache: Cache, stack: Stack, m: Module, condition: str, step: int):
        super().__init__(ops=cache.place is Place.MODULATED)
        lists = [name for name in stack.lists if m.count(name)]
        self.cache, self.stack = cache, stack
        self.first, self.last = f"{lists[0]}.0", f"{lists[-1]}.{m.count(lists[-1]) - 1}"
        self.call = Call(condition, step, np.empty(0), np.empty(0))
        self.answer: np.ndarray | None = None

    def enter(self, name: str, states: tuple[Any, ...]) -> Any:
        within, _, number = name.rpartition(".")
        if within not in self.stack.lists or not number.isdigit():
            return None
        if name == self.first:
            start = states[self.stack.picture or 0]
            self.call = self.call._replace(start=start, signal=start)
            if self.cache.place is Place.STACK:
                self.answer = self.cache.reuse(self.call)
                states = tuple(self.answer if state is start else state for state in states)
        elif self.answer is None:
            return None
        if self.answer is None or (name == self.first and self.cache.place is not Place.STACK):
            return None
        return states[:2] if self._apart(name) else states[0]

    def record(self, name: str, value: np.ndarray) -> np.ndarray:
        call, place = self.call, self.cache.place
        if (
            place is Place.MODULATED
            and name == f"{self.first}.{self.stack.modulated}"
            and call.signal is call.start
        ):
            self.call = call._replace(signal=value)
            self.answer = self.cache.reuse(self.call)
        if name == self._picture_of(self.first):
            if place is Place.FIRST_BLOCK:
                self.call = call._replace(signal=value)
                self.answer = self.cache.reuse(self.call)
            value = value if self.answer is None else self.answer
        if name == self._picture_of(self.last) and self.answer is None:
            self.cache.keep(self.call, value[:, -call.start.shape[1] :])
        return value

    def _apart(self, name: str) -> bool:
        """Return True for a block that takes and gives text and picture as two states."""
        return self.stack.picture is not None and name.rpartition(".")[0] == self.stack.lists[0]

    def _picture_of(self, name: str) -> str:
        """Return the tap of a block's picture."""
        return f"{name}.{self.stack.picture}" if self._apart(name) else name
