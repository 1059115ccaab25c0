"""Functions of Z-Image's model with bugs that a port, or an engine that batches prompts, may have."""

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import zimage
from refsd.networks.bugs import called_again, replacing

_PICTURE, _CAPTION = zimage.picture_ids, zimage.caption_ids


def _after_the_longest(padded, tokens_high, tokens_wide):
    return _PICTURE(np.full_like(padded, padded.max()), tokens_high, tokens_wide)


def _time_0(padded, tokens_high, tokens_wide):
    return _PICTURE(0 * padded - 1, tokens_high, tokens_wide)


def _rows_and_columns_swapped(padded, tokens_high, tokens_wide):
    return _PICTURE(padded, tokens_high, tokens_wide)[..., [0, 2, 1]]


_BY_POSITION = replacing(
    zimage,
    ("Z-Image's picture follows the longest caption of the batch, not its own", "picture_ids", _after_the_longest),
    ("Z-Image's picture is at 0 on the axis of time", "picture_ids", _time_0),
    ("Z-Image's rows and columns are swapped", "picture_ids", _rows_and_columns_swapped),
    ("Z-Image's captions count from 0", "caption_ids", lambda padded: _CAPTION(padded) - np.array([1, 0, 0])),
)
# Lumina 2 has the same blocks.
_AGAIN = called_again(zimage, "attention", "feed_forward")
BUGS = (*_BY_POSITION, Mutant("the attention is called again in the MLP's place", _AGAIN))
