"""Functions of Wan's model with bugs that a port may have."""

import numpy as np

from refsd.models import wan
from refsd.networks.bugs import replacing, rows_and_columns_swapped, with_result

BUGS = replacing(
    wan,
    ("Wan's rows and columns are swapped", "positions", rows_and_columns_swapped(wan.positions)),
    (
        "Wan's frames have one position",
        "positions",
        with_result(wan.positions, lambda ids: ids * np.array([0, 1, 1])),
    ),
)
