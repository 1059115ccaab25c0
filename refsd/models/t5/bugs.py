"""Known bugs of T5's relative positions and feed-forward."""

import re

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import t5
from refsd.networks.bugs import Change, exchanging, replacing

_BUCKET = t5.relative_position_bucket


def _buckets_of_a_decoder(distance, buckets, most):
    """T5 decoder's buckets: all for keys before the query; keys after it count as distance 0."""
    before = np.minimum(np.asarray(distance), 0)
    return _BUCKET(before, 2 * buckets, most)


def _first_table(name):
    """UMT5's tables of positions, taken for T5's one."""
    return re.sub(r"block\.\d+(.*relative_attention_bias)", r"block.0\1", name)


_PLACE = "relative_position_bucket"
BUGS = (
    Mutant("T5's gate and value are swapped", exchanging(("wi_0", "wi_1"))),
    Mutant("every layer has the first one's table of positions", Change(rename=_first_table)),
    *replacing(
        t5,
        ("T5's distances have no direction", _PLACE, lambda d, n, most: _BUCKET(-np.abs(d), n, most)),
        ("T5's distances have the other direction", _PLACE, lambda d, n, most: _BUCKET(-d, n, most)),
        ("T5's distances have one direction alone, as a decoder's", _PLACE, _buckets_of_a_decoder),
        ("T5's relative-position max_distance is halved", _PLACE, lambda d, n, most: _BUCKET(d, n, most // 2)),
        ("T5's distances are told apart twice as far", _PLACE, lambda d, n, most: _BUCKET(d, n, 2 * most)),
    ),
)
