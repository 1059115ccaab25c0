"""Taps that show on stderr what has been computed, once the work has taken two seconds."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from rich.console import Console

from refsd.module import Taps

PATIENCE = 2.0  # seconds that pass in silence


class ShownTaps(Taps):
    """Taps whose latest name stands in a line on stderr."""

    def __init__(self, label: str, taps: Taps):
        super().__init__(taps.pattern, taps.ops, taps.names)
        self.label = label
        self.started = time.monotonic()
        self.status = Console(file=sys.stderr).status("")

    def record(self, name: str, value: np.ndarray) -> None:
        super().record(name, value)
        passed = time.monotonic() - self.started
        if passed > PATIENCE:
            self.status.update(f"{self.label}: {name} done, {passed:.0f} s")
            self.status.start()


@contextmanager
def shown(label: str, taps: Taps) -> Iterator[ShownTaps]:
    """Yield taps that keep what `taps` would, and show it until the block ends."""
    progress = ShownTaps(label, taps)
    try:
        yield progress
    finally:
        progress.status.stop()
