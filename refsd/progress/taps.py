"""Taps that show the progress of a model on stderr, once it has run for two seconds."""

import sys
import time
from collections.abc import Collection
from typing import Self

import numpy as np
from rich.console import Console

from refsd.taps import Taps

PATIENCE = 2.0  # seconds before anything is shown


class ShownTaps(Taps):
    """Taps that show the latest recorded name in a status line on stderr, until their `with` block ends."""

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
