"""Known bugs of Qwen2.5-VL's vision tower: its windows, the order of its patches, its frames."""

import numpy as np

from refsd.models import qwen_vision
from refsd.networks.bugs import replacing, with_arguments

_PATCHES, _PLACES = qwen_vision.patches, qwen_vision.places
# The window's side, in patches, taken for tokens of two patches.
_HALF_A_WINDOW = with_arguments(qwen_vision.windows, window=lambda side: max(side // 2, 1))


def _one_frame(x, patch):
    """Leave the second frame black."""
    both = _PATCHES(x, patch)
    cut = both.reshape(*both.shape[:3], 3, 2, -1)
    return np.concatenate([cut[..., :1, :], 0 * cut[..., 1:, :]], axis=-2).reshape(both.shape)


def _row_by_row(rows, columns):
    """Number the patches in the picture's order, not token by token."""
    own = _PLACES(rows, columns)
    side = qwen_vision.MERGED
    return np.indices((rows * side, columns * side)).reshape(2, -1).T.reshape(own.shape)


BUGS = replacing(
    qwen_vision,
    ("tokens are put back by the order of the windows, not by its inverse", "row_by_row", lambda y, o: y[:, o]),
    ("tokens are left in the order of the windows", "row_by_row", lambda y, o: y),
    ("every block attends within windows", "runs_of", lambda i, whole, sizes: sizes),
    ("every block attends to the whole picture", "runs_of", lambda i, whole, sizes: [sum(sizes)]),
    (
        "blocks within windows and blocks that attend to the whole picture are exchanged",
        "runs_of",
        lambda i, whole, sizes: sizes if i in whole else [sum(sizes)],
    ),
    ("windows are half as wide", "windows", _HALF_A_WINDOW),
    ("a picture has one frame, the other is black", "patches", _one_frame),
    ("patches are turned row by row, not token by token", "places", _row_by_row),
)
