"""Functions of Wan's model with bugs that a port may have."""

from collections.abc import Callable
from typing import Any

import numpy as np

from refsd.models import wan

_POSITIONS = wan.positions

# (name of the bug, function of models/wan.py, what stands in its place)
ROWS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("Wan's rows and columns are swapped", "positions", lambda grid: _POSITIONS(grid)[:, [0, 2, 1]]),
    ("Wan's frames have one position", "positions", lambda grid: _POSITIONS(grid) * np.array([0, 1, 1])),
)
