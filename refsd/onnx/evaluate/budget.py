"""The memory, the nodes and the seconds that an evaluation may take, whatever a file asks for."""

import math
import time
from collections.abc import Iterable

from refsd.numerics.errors import BadInput

# Executions of nodes, iterations of loops and calls of functions. A large model has some ten thousand.
MOST_NODES = 200_000
SECONDS = 3600.0


class Budget:
    """
    limit: bytes of all values that are alive at once
    live:  bytes of those that are
    seconds: from now until the last node may start
    """

    def __init__(self, limit: int, seconds: float = SECONDS):
        self.limit, self.seconds = limit, seconds
        self._end = time.monotonic() + seconds
        self.live = 0
        self.peak = 0
        self.nodes = 0

    def room(self, shape: Iterable[int], itemsize: int) -> tuple[int, ...]:
        """Check that an array of this shape fits beside what is alive -> the shape. Raises BadInput."""
        whole = tuple(int(n) for n in shape)
        if any(n < 0 for n in whole):
            raise BadInput(f"a result of shape {list(whole)}: no axis has a negative length")
        size = math.prod(whole) * itemsize
        if self.live + size > self.limit:
            raise BadInput(
                f"a result of shape {list(whole)} takes {_shown(size)} beside {_shown(self.live)} in use, the "
                f"budget is {_shown(self.limit)}: give more with --memory"
            )
        return whole

    def step(self) -> None:
        """Count one execution of a node. Raises BadInput when there are too many, or when the time is over."""
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise BadInput(f"more than {MOST_NODES} nodes executed: a loop, or functions within functions")
        if time.monotonic() > self._end:
            raise BadInput(f"not done in {self.seconds:g} s: give more with --seconds")

    def take(self, size: int) -> None:
        self.live += size
        self.peak = max(self.peak, self.live)

    def give_back(self, size: int) -> None:
        self.live -= size


def _shown(size: int) -> str:
    return f"{size / 1e9:.3g} GB" if size >= 1e8 else f"{size / 1e6:.3g} MB"
