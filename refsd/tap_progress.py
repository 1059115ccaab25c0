"""Taps that show on stderr what has been computed, once the work has taken two seconds."""

import sys
import time
from collections.abc import Collection
from typing import Self

import numpy as np
from rich.console import Console

from refsd.module import Taps

PATIENCE = 2.0  # seconds that pass in silence


class ShownTaps(Taps):
    """Taps whose latest name stands in a line on stderr, until the block ends that uses them."""

    def __init__(self, label: str, pattern: str = "*", ops: bool = False, names: Collection[str] | None = None):
        super().__init__(pattern, ops, names)
        self.label = label
        self.started = time.monotonic()
        self.status = Console(file=sys.stderr).status("")

    def record(self, name: str, value: np.ndarray) -> np.ndarray:
        value = super().record(name, value)
        passed = time.monotonic() - self.started
        if passed > PATIENCE:
            self.status.update(f"{self.label}: {name} done, {passed:.0f} s")
            self.status.start()
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.status.stop()
