"""Known bugs of T5's relative positions and feed-forward."""

import re
from functools import partial

import numpy as np

from refsd.golden.judge import Mutant
from refsd.models import t5
from refsd.networks.bugs import Change, exchanging, replacing, with_arguments

_bucket = partial(with_arguments, t5.relative_position_bucket)


# T5 decoder's buckets: all for keys before the query; keys after it count as distance 0.
_OF_A_DECODER = _bucket(relative_position=lambda d: np.minimum(np.asarray(d), 0), num_buckets=lambda n: 2 * n)


def _first_table(name):
    """UMT5's tables of positions, taken for T5's one."""
    return re.sub(r"block\.\d+(.*relative_attention_bias)", r"block.0\1", name)


_PLACE = "relative_position_bucket"
BUGS = (
    Mutant("T5's gate and value are swapped", exchanging(("wi_0", "wi_1"))),
    Mutant("every layer has the first one's table of positions", Change(rename=_first_table)),
    *replacing(
        t5,
        ("T5's distances have no direction", _PLACE, _bucket(relative_position=lambda d: -np.abs(d))),
        ("T5's distances have the other direction", _PLACE, _bucket(relative_position=lambda d: -d)),
        ("T5's distances have one direction alone, as a decoder's", _PLACE, _OF_A_DECODER),
        ("T5's relative-position max_distance is halved", _PLACE, _bucket(max_distance=lambda n: n // 2)),
        ("T5's distances are told apart twice as far", _PLACE, _bucket(max_distance=lambda n: 2 * n)),
    ),
)
