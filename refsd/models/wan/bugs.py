"""Functions of Wan's model with bugs that a port may have."""

import numpy as np

from refsd.models import wan
from refsd.networks.bugs import replacing

_POSITIONS = wan.positions

BUGS = replacing(
    wan,
    ("Wan's rows and columns are swapped", "positions", lambda grid: _POSITIONS(grid)[:, [0, 2, 1]]),
    ("Wan's frames have one position", "positions", lambda grid: _POSITIONS(grid) * np.array([0, 1, 1])),
)
