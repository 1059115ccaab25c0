"""Functions of Z-Image's model with bugs that a port, or an engine that batches prompts, may have."""

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import zimage
from refsd.networks.bugs import called_again, replacing, rows_and_columns_swapped, with_arguments, with_result

_PICTURE = zimage.picture_ids
_FROM_0 = with_result(zimage.caption_ids, lambda ids: ids - np.array([1, 0, 0]))
_AFTER_THE_LONGEST = with_arguments(_PICTURE, padded=lambda lengths: np.full_like(lengths, lengths.max()))
_BY_POSITION = replacing(
    zimage,
    ("Z-Image's picture follows the longest caption of the batch, not its own", "picture_ids", _AFTER_THE_LONGEST),
    (
        "Z-Image's picture is at 0 on the axis of time",
        "picture_ids",
        with_arguments(_PICTURE, padded=lambda n: 0 * n - 1),
    ),
    ("Z-Image's rows and columns are swapped", "picture_ids", rows_and_columns_swapped(_PICTURE)),
    ("Z-Image's captions count from 0", "caption_ids", _FROM_0),
)
# Lumina 2 has the same blocks.
_AGAIN = called_again(zimage, "attention", "feed_forward")
BUGS = (*_BY_POSITION, Mutant("the attention is called again in the MLP's place", _AGAIN))
