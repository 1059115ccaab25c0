"""Taps: what a model's blocks and operations give, recorded under their names."""

import fnmatch
from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np


class Taps(dict[str, np.ndarray]):
    """Recorded outputs by name, in order of computation.

    A block's output has the name of its prefix ("input_blocks.1.0"); an operation with weights has their key
    ("input_blocks.1.0.in_layers.2"); another operation has the block's prefix and its own name
    ("input_blocks.1.0.silu"). Repeated names are numbered: "...silu.1".

    pattern: glob of the names to keep
    ops:     True to record operations too, not only blocks
    names:   the only names to keep; None: no restriction
    """

    def __init__(self, pattern: str = "*", ops: bool = False, names: Collection[str] | None = None):
        super().__init__()
        self.pattern = pattern
        self.ops = ops
        self.names = names
        self.recorded: list[str] = []  # every name, kept or not
        self._seen: Counter[str] = Counter()

    def enter(self, name: str, states: tuple[Any, ...]) -> Any:
        """Return a block's output in its place, so that it is not run; None: it runs. states: its arguments"""
        return None

    def record(self, name: str, value: np.ndarray) -> np.ndarray:
        """Record an output -> the value with which the model continues: the same, or a subclass's replacement."""
        again = self._seen[name]
        self._seen[name] += 1
        name = f"{name}.{again}" if again else name
        self.recorded.append(name)
        if fnmatch.fnmatchcase(name, self.pattern) and (self.names is None or name in self.names):
            self[name] = np.array(value)
        return value
